"""Existing memory becomes a Tensor, and a Tensor becomes memory elsewhere, without a copy."""

import gc

import numpy as np
import pytest

import disposescope as ds
from disposescope.tensors.tensor.tensor import exported_storages


def test_asarray_shares_the_memory_of_an_array():
    array = np.zeros(3)
    t = ds.asarray(array)
    t[0] = 1
    array[1] = 2
    assert (array.tolist(), t.tolist()) == ([1.0, 2.0, 0.0],) * 2
    t.dispose()
    assert array.tolist() == [1.0, 2.0, 0.0]


def test_asarray_returns_a_tensor_that_fits_itself():
    t = ds.ones(2)
    assert ds.asarray(t) is t
    assert ds.asarray(t, dtype=float) is t
    other = ds.asarray(t, dtype="f4")
    assert other is not t
    assert other.dtype == np.float32
    copied = ds.asarray(t, copy=True)
    assert not np.shares_memory(copied, t)
    named = ds.asarray(t, name="n")
    assert named.name == "n"
    assert np.shares_memory(named, t)


def test_asarray_refuses_to_copy_where_that_was_asked():
    with pytest.raises(ValueError, match="copy"):
        ds.asarray([1, 2], copy=False)
    with pytest.raises(ValueError, match="copy"):
        ds.asarray(ds.ones(2), dtype=int, copy=False)


def test_the_shape_of_the_array_does_not_reach_into_the_tensor():
    array = np.zeros(4)
    t = ds.asarray(array)
    array.resize((2, 2), refcheck=False)
    assert t.shape == (4,)


def test_a_tensor_made_of_an_alias_has_the_storage_of_its_origin():
    t = ds.zeros(100)
    ds.reset_statistics()
    before = ds.statistics().live_nbytes
    again = ds.asarray(t.numpy()[10:20])
    assert ds.statistics().live_nbytes == before
    again[0] = 3
    assert float(t[10]) == 3.0


def test_from_dlpack_shares_the_memory_of_arrays_and_tensors():
    array = np.zeros(2)
    array.flags.writeable = False
    assert np.shares_memory(ds.from_dlpack(array), array)
    t = ds.ones(2)
    shared = ds.from_dlpack(t, device="cpu")
    assert shared is not t
    assert np.shares_memory(shared, t)
    assert not np.shares_memory(ds.from_dlpack(t, copy=True), t)


def test_from_dlpack_refuses_what_has_no_dlpack():
    with pytest.raises(TypeError, match="list has no __dlpack__"):
        ds.from_dlpack([1, 2])
    with pytest.raises(ValueError, match="no device"):
        ds.from_dlpack(np.ones(1), device="cuda")


def test_numpy_takes_a_tensor_by_dlpack():
    t = ds.arange(3)
    array = np.from_dlpack(t)
    assert np.shares_memory(array, t)
    t.dispose()
    assert array.tolist() == [0, 1, 2]


def test_from_dlpack_shares_the_memory_of_torch_and_keeps_it_alive():
    torch = pytest.importorskip("torch")
    source = torch.arange(4.0)
    t = ds.from_dlpack(source)
    # What PyTorch 2.5 hands over does not say whether it may be written to, and NumPy does not.
    assert t.flags.writeable == np.from_dlpack(source).flags.writeable
    (t if t.flags.writeable else source)[0] = 9
    assert (float(source[0]), float(t[0])) == (9, 9)
    address = source.data_ptr()
    del source
    gc.collect()
    torch.zeros(4)
    assert t.tolist() == [9.0, 1.0, 2.0, 3.0]
    assert t.ctypes.data == address


@pytest.mark.parametrize("way", ["from_dlpack", "from_numpy", "as_tensor"])
def test_torch_shares_the_memory_of_a_tensor_which_stays_valid(way):
    torch = pytest.importorskip("torch")
    t = ds.arange(4.0)
    there = getattr(torch, way)(t if way == "from_dlpack" else t.numpy())
    there[0] = 7
    assert float(t[0]) == 7
    t.dispose()
    (out,) = exported_storages()
    assert (out.nbytes, out.aliases, out.escaped) == (32, 1, True)
    view = there[1:]
    del there
    assert view.tolist() == [1.0, 2.0, 3.0]
    assert len(exported_storages()) == 1
    del view
    assert exported_storages() == ()


def test_a_read_only_tensor_is_not_lent_as_writeable():
    t = ds.ones(2)
    t.setflags(write=False)
    with pytest.raises(BufferError):
        t.__dlpack__()
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":  # which can say that it is read-only
        assert t.__dlpack__(max_version=(1, 0)) is not None
    assert t.__dlpack_device__() == (1, 0)


def test_torch_that_needs_a_gradient_is_refused_as_by_numpy():
    torch = pytest.importorskip("torch")
    source = torch.ones(2, requires_grad=True)
    # A RuntimeError in PyTorch 2.5.
    with pytest.raises((BufferError, RuntimeError)) as by_numpy:
        np.from_dlpack(source)
    with pytest.raises(by_numpy.type):
        ds.from_dlpack(source)
