"""Memory is known by who owns it, and counted once."""

import mmap

import numpy as np

import disposescope as ds
from disposescope.tensors.numpy.storage import storage_of


def test_a_view_of_a_view_has_the_storage_of_the_array_that_owns_the_memory():
    big = np.zeros((100, 10))
    views = [big[3:], big[3:].T, big.reshape(-1)[5:6], big.view("u1"), np.broadcast_to(big, (5, 100, 10))]
    views.append(np.lib.stride_tricks.sliding_window_view(big, 3, axis=0)[:2])
    views.append(np.lib.stride_tricks.as_strided(big, (2,), (8,)))
    views.append(np.frombuffer(memoryview(big).cast("B")))
    assert {storage_of(view) for view in views} == {(id(big), 8000)}


def test_foreign_memory_is_known_by_its_owner(tmp_path):
    data = b"x" * 100
    assert storage_of(np.frombuffer(data, "u1", 10)) == (id(data), 100)
    buffer = bytearray(100)
    assert storage_of(np.frombuffer(buffer, "u1", 10)) == (id(buffer), 100)
    assert storage_of(np.frombuffer(memoryview(buffer)[5:], "u1")) == (id(buffer), 100)
    path = tmp_path / "file"
    path.write_bytes(data)
    mapped = np.memmap(path, "u1", "r")
    identity, nbytes = storage_of(mapped[:5])
    assert (identity, nbytes) == (storage_of(mapped)[0], 100)
    assert isinstance(mapped.base, mmap.mmap)


def test_live_bytes_are_those_of_the_storages():
    before = ds.statistics().live_nbytes
    big = ds.zeros(1000)
    ten = big[:10]
    assert ds.statistics().live_nbytes - before == 8000
    del big
    assert ds.statistics().live_nbytes - before == 8000
    copied = ten.copy()
    del ten
    assert ds.statistics().live_nbytes - before == 80
    with ds.dispose_scope() as scope:
        views = [copied[index:] for index in range(5)]
        assert scope.nbytes == 80
        assert len(views) == len(scope) == 5
    assert ds.statistics().live_nbytes - before == 80


def test_the_same_array_wrapped_twice_counts_once():
    before = ds.statistics().live_nbytes
    array = np.zeros(10)
    first, second = ds.asarray(array), ds.asarray(array[2:])
    assert ds.statistics().live_nbytes - before == 80
    assert ds.statistics().by_device["cpu:0"].live_nbytes >= 80
    del first, second


def test_memory_is_freed_with_its_last_handle():
    import weakref

    array = np.zeros(10)
    gone = weakref.ref(array)
    with ds.dispose_scope() as scope:
        t = ds.asarray(array)
        view = scope.move_to_outer(t[:2])
        del array
    assert t.disposed
    assert gone() is not None
    view.dispose()
    assert gone() is None
