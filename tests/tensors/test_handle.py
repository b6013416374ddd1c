"""How a Tensor is born, named and disposed."""

import threading
import weakref

import numpy as np
import pytest

import disposescope as ds
from disposescope.scopes.identity import entry_of
from disposescope.tensors.tensor.tensor import TENSOR, describe, unborn, wrap
from disposescope.tensors.tensor.tensor import Tensor as Handle


def test_wrap_takes_the_array_without_a_copy_and_records_the_birth():
    array = np.zeros(3)
    with ds.dispose_scope() as scope:
        t = wrap(array, "n")
        assert t in scope
    u = wrap(array)
    u[0] = 1
    assert array[0] == 1
    assert (t.disposed, u.name) == (True, None)


def test_wrap_makes_rank_0_of_what_is_no_array():
    assert wrap(np.float32(1)).dtype == np.float32
    assert wrap([1, 2]).item() == [1, 2]
    assert wrap(np.ones(1).view(np.memmap)).shape == (1,)


def test_an_unborn_tensor_works_and_is_not_counted():
    before = ds.statistics()
    t = unborn(np.ones(2))
    assert (t + 1).tolist() == [2.0, 2.0]
    assert entry_of(t) is None
    assert ds.statistics().live == before.live
    t.dispose()
    t.dispose()
    assert t.disposed
    assert ds.is_disposed(t)
    with pytest.raises(ds.DisposedError):
        t + 1


def test_disposing_counts_once_and_in_scope_where_it_was_owned():
    with ds.dispose_scope() as scope:
        t, u = ds.ones(1), ds.ones(1)
        ds.reset_statistics()
        t.dispose()
        t.dispose()
        assert (ds.statistics().disposed_in_scope, ds.statistics().disposed_unscoped, len(scope)) == (1, 0, 1)
    assert ds.statistics().disposed_in_scope == 2
    v = ds.ones(1)
    v.dispose()
    del u
    assert (ds.statistics().disposed_in_scope, ds.statistics().disposed_unscoped) == (2, 1)


def test_disposing_a_member_disposes_its_composite():
    class Pair:
        def __init__(self):
            self.left, self.right = ds.ones(1), ds.zeros(1)

    ds.register_kind(Pair, members=lambda pair: {"left": pair.left, "right": pair.right})
    with ds.dispose_scope() as scope:
        pair = scope.attach(Pair())
        pair.left.dispose()
        assert pair.right.disposed
        assert ds.is_disposed(pair)


def test_a_failure_of_the_release_of_a_composite_is_raised():
    class Broken:
        def __init__(self):
            self.part = ds.ones(1)

    def fail(_broken):
        raise OSError("no")

    ds.register_kind(Broken, release=fail, members=lambda broken: [broken.part])
    with ds.dispose_scope() as scope:
        broken = scope.attach(Broken())
        with pytest.raises(OSError, match="no"):
            broken.part.dispose()
        assert broken.part.disposed


def test_the_array_goes_with_the_tensor_though_the_tensor_is_held():
    array = np.zeros(3)
    gone = weakref.ref(array)
    t = wrap(array)
    del array
    t.dispose()
    assert gone() is None


def test_a_description_never_raises():
    t = ds.ones((2, 3), dtype="f4", name="w")
    assert describe(t) == "Tensor shape=(2, 3) dtype=float32 name='w'"
    t.dispose()
    assert describe(t) == "Tensor shape=(2, 3) dtype=float32 name='w'"
    assert repr(object.__new__(ds.Tensor)) == "<disposed Tensor>"


def test_a_kind_answers_for_a_tensor_that_another_thread_disposes_meanwhile():
    t = ds.ones(2)
    assert TENSOR.layout(t) == ((2,), "float64", 16)
    t.dispose()
    assert (tuple(TENSOR.storages(t)), TENSOR.layout(t), TENSOR.device(t)) == ((), None, "cpu:0")


def test_a_name_cannot_be_changed():
    with pytest.raises(AttributeError):
        ds.ones(1).name = "other"


def test_a_tensor_disposed_by_two_threads_is_disposed_once():
    tensors = [ds.ones(1) for _ in range(200)]
    ds.reset_statistics(process=True)
    start = threading.Barrier(2)

    def dispose():
        start.wait()
        for tensor in tensors:
            tensor.dispose()

    threads = [threading.Thread(target=dispose) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ds.statistics(process=True).disposed_unscoped == 200
    assert all(tensor.disposed for tensor in tensors)


def test_a_tensor_without_an_array_has_no_storage_and_no_layout():
    disposed = ds.zeros(3)
    disposed.dispose()
    for tensor in (disposed, object.__new__(Handle)):
        assert (TENSOR.storages(tensor), TENSOR.layout(tensor)) == ((), None)
