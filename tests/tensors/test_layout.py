"""Attributes, views and copies."""

import numpy as np
import pytest

import disposescope as ds

# What an ndarray has and a Tensor has not: it hands out or changes which memory is behind it, or
# speaks the array protocols by an address that nothing would keep alive.
LEFT_OUT = {"base", "resize", "dump", "dumps"}
LEFT_OUT |= {"__array_interface__", "__array_struct__", "__array_finalize__", "__array_wrap__", "__array_namespace__"}
LEFT_OUT |= {"__class_getitem__", "__delitem__", "__setstate__", "__buffer__", "_set_dtype", "_set_shape"}
# NumPy 2.0 lists these still, and has taken three of them out.
LEFT_OUT |= {"itemset", "newbyteorder", "ptp", "tostring"}


def test_everything_that_an_ndarray_has_is_there_or_left_out_on_purpose():
    missing = {name for name in dir(np.ndarray) if not hasattr(ds.Tensor, name)}
    assert missing == LEFT_OUT & set(dir(np.ndarray))


def test_attributes_equal_those_of_the_array():
    a = np.ones((2, 3), dtype="f4")[:, ::2]
    t = ds.asarray(a)
    for name in ("shape", "dtype", "ndim", "size", "itemsize", "nbytes", "strides"):
        assert getattr(t, name) == getattr(a, name)
    assert t.device == "cpu:0"
    assert t.flags.c_contiguous == a.flags.c_contiguous
    assert t.ctypes.data == a.ctypes.data


@pytest.mark.parametrize("name", ["shape", "dtype", "strides", "data"])
def test_what_the_memory_is_cannot_be_assigned(name):
    with pytest.raises(AttributeError):
        setattr(ds.ones(2), name, ())


VIEWS = {
    "T": lambda t: t.T,
    "mT": lambda t: t.mT,
    "reshape": lambda t: t.reshape(4),
    "reshape to a tuple": lambda t: t.reshape((4, 1)),
    "ravel": lambda t: t.ravel(),
    "transpose": lambda t: t.transpose(),
    "swapaxes": lambda t: t.swapaxes(0, 1),
    "squeeze": lambda t: t.squeeze(),
    "view": lambda t: t.view(),
    "view of another dtype": lambda t: t.view("i8"),
    "getfield": lambda t: t.getfield("f4"),
    "imag": lambda t: t.imag,
    "diagonal": lambda t: t.diagonal(),
    "slice": lambda t: t[:1],
    "new axis": lambda t: t[None],
    "ellipsis": lambda t: t[...],
    "broadcast_to": lambda t: np.broadcast_to(t, (3, 2, 2)),
    "sliding window": lambda t: np.lib.stride_tricks.sliding_window_view(t, (2, 2)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_shares_the_storage_of_its_base_which_is_counted_once(name):
    base = ds.ones((2, 2), dtype=complex if name == "imag" else float)
    ds.reset_statistics()
    before = ds.statistics()
    view = VIEWS[name](base)
    now = ds.statistics()
    assert type(view) is ds.Tensor
    assert np.shares_memory(view, base)
    assert (now.live - before.live, now.live_nbytes) == (1, before.live_nbytes)
    base.dispose()
    assert view.size
    assert ds.statistics().live_nbytes == before.live_nbytes


@pytest.mark.parametrize("name", ["copy", "flatten", "astype", "byteswap"])
def test_a_copy_has_memory_of_its_own(name):
    base = ds.ones((2, 2))
    copy = getattr(base, name)(*(["f8"] if name == "astype" else []))
    assert not np.shares_memory(copy, base)


def test_parts_of_a_complex_tensor_can_be_assigned():
    t = ds.zeros(2, dtype=complex)
    t.real = ds.tensor([1.0, 2.0])
    t.imag = 3
    t.flat = t.flat[::-1].copy()
    assert t.tolist() == [2 + 3j, 1 + 3j]
    assert t.real.tolist() == [2.0, 1.0]
    assert t.imag.tolist() == [3.0, 3.0]


def test_flags_can_make_a_tensor_read_only():
    t = ds.ones(2)
    t.setflags(write=False)
    with pytest.raises(ValueError, match="read-only"):
        t[0] = 2
    assert not t.numpy().flags.writeable


def test_fields_can_be_set():
    t = ds.zeros(2, dtype="u4")
    t.setfield(ds.tensor([1, 2]), "u1", 0)
    assert t.tolist() == [1, 2]


def test_a_view_as_a_type_of_arrays_is_refused():
    with pytest.raises(TypeError, match="memmap"):
        ds.ones(2).view(np.memmap)


def test_another_device_is_refused():
    t = ds.ones(2)
    assert t.to_device("cpu:0") is t
    with pytest.raises(ValueError, match="no device 'cuda'"):
        t.to_device("cuda")


def test_elements_as_python_objects():
    t = ds.tensor([[1, 2], [3, 4]])
    assert (t.tolist(), t.item(1), t.item(1, 1), t.item((0, 1))) == ([[1, 2], [3, 4]], 2, 4, 2)
    assert t.tobytes() == np.array([[1, 2], [3, 4]]).tobytes()
    assert list(t.flat) == [1, 2, 3, 4]


def test_elements_go_to_a_file(tmp_path):
    path = tmp_path / "elements"
    ds.tensor([1.5, 2.0]).tofile(path)
    assert np.fromfile(path).tolist() == [1.5, 2.0]
    np.save(tmp_path / "elements.npy", ds.tensor([1, 2]))
    assert np.load(tmp_path / "elements.npy").tolist() == [1, 2]
