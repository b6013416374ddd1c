"""What leaves a Tensor as a plain array is followed until its last user is gone."""

import pickle

import numpy as np
import pytest

import disposescope as ds
from disposescope.tensors.tensor.tensor import exported_storages

ARRAYS = [
    np.ones((2, 3)),
    np.ones((2, 3))[:, ::-2],
    np.ones(2, ">f4"),
    np.array(["a", "bc"]),
    np.zeros(2, "M8[ns]"),
    np.array([{}, 3], dtype=object),
    np.zeros(2, [("x", "O"), ("y", "f4")]),
    np.zeros(2, np.dtype([("x", "i1"), ("y", "f8")], align=True)),
    np.zeros(2, [("x", "f4", (2,))]),
    np.zeros(2, np.dtype({"names": ["a", "b"], "formats": ["O", "i2"], "offsets": [8, 2]})),
    np.zeros(2, "V5"),
    np.array(3.0),
    np.array(["a", "b"], dtype=np.dtypes.StringDType()),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.dtype))
def test_an_alias_is_the_array_itself_in_all_but_name(array):
    t = ds.asarray(array)
    alias = t.numpy()
    assert type(alias) is np.ndarray
    assert (alias.shape, alias.strides, alias.dtype) == (array.shape, array.strides, array.dtype)
    assert alias.flags.writeable
    assert repr(alias) == repr(array)
    assert np.shares_memory(alias, array)
    assert [storage.aliases for storage in exported_storages()] == [1]
    del alias
    assert exported_storages() == ()
    t.setflags(write=False)
    assert not t.numpy().flags.writeable


def test_an_alias_stays_valid_after_the_tensor_and_counts_as_escaped():
    with ds.dispose_scope():
        t = ds.arange(10.0, name="w")[2:]
        alias = t.numpy()
        (out,) = exported_storages()
        assert (out.nbytes, out.aliases, out.escaped) == (80, 1, False)
        assert out.resource == "Tensor shape=(8,) dtype=float64"
    assert t.disposed
    assert alias.tolist() == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    assert exported_storages()[0].escaped
    del alias
    assert exported_storages() == ()


def test_what_was_derived_from_an_alias_keeps_it_exported():
    t = ds.zeros(10)
    derived = t.numpy()[::2].reshape(5, 1).T[0]
    assert len(exported_storages()) == 1
    view = memoryview(derived)
    del derived
    assert len(exported_storages()) == 1
    del view
    assert exported_storages() == ()


def test_a_storage_counts_once_with_all_its_aliases():
    t = ds.zeros(10)
    part = t[:2]
    first, second = t.numpy(), part.numpy()
    other = ds.ones(1).numpy()
    assert sorted((out.nbytes, out.aliases, out.escaped) for out in exported_storages()) == [
        (8, 1, True),  # its tensor died at once
        (80, 2, False),
    ]
    part.dispose()
    assert [out.escaped for out in exported_storages()] == [True, True]
    del first, second, other


EXPORTS = {
    "numpy": lambda t: t.numpy(),
    "asarray": np.asarray,
    "data": lambda t: t.data,
    "flat": lambda t: t.flat,
    "ctypes": lambda t: t.ctypes,
    "dlpack": np.from_dlpack,
    "capsule": lambda t: t.__dlpack__(),
}


@pytest.mark.parametrize("way", EXPORTS)
def test_every_way_out_is_counted_until_its_user_is_gone(way):
    t = ds.zeros(3)
    user = EXPORTS[way](t)
    t.dispose()
    assert [(out.nbytes, out.escaped) for out in exported_storages()] == [(24, True)]
    del user
    assert exported_storages() == ()


def test_elements_out_of_band_are_counted_too():
    t = ds.zeros(1000)
    buffers = []
    pickle.dumps(t, 5, buffer_callback=buffers.append)
    t.dispose()
    assert [out.nbytes for out in exported_storages()] == [8000]
    buffers.clear()
    assert exported_storages() == ()


def test_no_memory_no_export():
    alias = ds.zeros((0, 3)).numpy()
    assert alias.shape == (0, 3)
    assert exported_storages() == ()


def test_an_export_does_not_keep_the_tensor_and_no_statistics():
    ds.reset_statistics()
    before = ds.statistics().live
    alias = ds.zeros(3).numpy()
    assert ds.statistics().live == before
    assert alias.tolist() == [0.0, 0.0, 0.0]


def test_a_tensor_is_no_buffer_because_others_would_misread_it():
    torch = pytest.importorskip("torch")
    t = ds.tensor([1.0, 2.0])
    try:
        there = torch.asarray(t)
    except TypeError:
        # PyTorch 2.5 reads it as a sequence, whose items are then sequences without a length.
        there = torch.from_dlpack(t)
    assert there.tolist() == [1.0, 2.0]
    for reader in (memoryview, lambda t: np.ndarray((2,), buffer=t)):
        with pytest.raises(TypeError, match="bytes-like object is required"):
            reader(t)
    assert memoryview(t.data).tolist() == [1.0, 2.0]
