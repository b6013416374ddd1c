from __future__ import annotations

import copy
import gc
import operator
import pickle
import weakref
from typing import Any

import numpy as np
import pytest

import disposescope as ds


def packed_of(*lengths: int, dtype: str = "int64") -> ds.PackedSequence:
    return ds.pack_sequence([np.arange(length, dtype=dtype) for length in lengths or (2, 3)], enforce_sorted=False)


def values(packed: Any) -> list[Any]:
    return [None if field is None else field.tolist() for field in packed]


FIELDS = ["data", "batch_sizes", "sorted_indices", "unsorted_indices"]


# ---------------------------------------------------------------------- as a namedtuple


def test_it_unpacks_and_indexes_as_a_namedtuple_of_four() -> None:
    packed = packed_of()
    data, batch_sizes, sorted_indices, unsorted_indices = packed
    assert (data.tolist(), batch_sizes.tolist()) == ([0, 0, 1, 1, 2], [2, 2, 1])
    assert sorted_indices is not None
    assert unsorted_indices is not None
    assert (sorted_indices.tolist(), unsorted_indices.tolist()) == ([1, 0], [1, 0])
    assert len(packed) == 4
    assert packed[0] is packed.data is data
    assert packed[-1] is packed.unsorted_indices
    assert packed[1:3] == (batch_sizes, sorted_indices)
    assert next(reversed(packed)) is unsorted_indices
    with pytest.raises(IndexError):
        packed[4]


def test_it_has_the_methods_of_a_namedtuple() -> None:
    packed = ds.pack_sequence([np.arange(3)])
    assert ds.PackedSequence._fields == ds.PackedSequence.__match_args__ == tuple(FIELDS)
    assert ds.PackedSequence._field_defaults == {}
    assert list(packed._asdict()) == FIELDS
    assert packed._asdict()["data"] is packed.data
    replaced = packed._replace(data=np.ones(3))
    assert values(replaced) == [[1.0, 1.0, 1.0], [1, 1, 1], None, None]
    assert packed.data.tolist() == [0, 1, 2]
    assert values(ds.PackedSequence._make(packed)) == values(packed)
    assert None in packed
    assert (packed.index(None), packed.count(None)) == (2, 2)
    assert operator.add(packed, (1,)) == (*packed, 1)
    assert operator.add((1,), packed) == (1, *packed)
    assert packed + packed == (*packed, *packed)
    assert packed * 2 == 2 * packed == (*packed, *packed)
    match packed:
        case ds.PackedSequence(data, sizes, None, None):
            assert data is packed.data
            assert sizes is packed.batch_sizes
        case _:
            pytest.fail("does not match by position")


def test_it_compares_as_a_tuple_does() -> None:
    packed = packed_of()
    assert packed == packed
    assert packed == tuple(packed)
    assert hash(packed) == hash(tuple(packed))
    assert packed != 3
    assert packed != (1, 2)
    assert ds.pack_sequence([np.array([1])], enforce_sorted=False) != ds.pack_sequence([np.array([1])])
    assert (packed != tuple(packed)) is False
    single = ds.pack_sequence([np.array([1])])
    assert single == ds.pack_sequence([np.array([1])])
    assert single != ds.pack_sequence([np.array([2])])
    assert single < ds.pack_sequence([np.array([2])])
    assert single <= tuple(single)
    assert ds.pack_sequence([np.array([2])]) > single
    assert single >= single
    for compare in (operator.eq, operator.lt):
        with pytest.raises(ValueError, match="ambiguous"):
            compare(packed, packed_of())
    with pytest.raises(TypeError):
        operator.lt(packed, 3)


def test_its_fields_cannot_be_set_or_deleted_and_other_attributes_can() -> None:
    packed = packed_of()
    for field in FIELDS:
        with pytest.raises(AttributeError):
            setattr(packed, field, 1)
        with pytest.raises(AttributeError):
            delattr(packed, field)
    packed.note = "mine"
    assert copy.copy(packed).note == pickle.loads(pickle.dumps(packed)).note == "mine"


def test_repr_shows_the_fields() -> None:
    assert repr(ds.pack_sequence([np.arange(2)])) == (
        "PackedSequence(data=Tensor([0, 1]), batch_sizes=Tensor([1, 1]), sorted_indices=None, unsorted_indices=None)"
    )


def test_unsorted_indices_are_the_inverse_of_sorted_ones() -> None:
    packed = ds.PackedSequence(np.arange(6), np.array([3, 2, 1]), np.array([2, 0, 1]))
    assert packed.unsorted_indices is not None
    assert packed.unsorted_indices.tolist() == [1, 2, 0]


def test_a_pair_is_taken_for_data_and_batch_sizes() -> None:
    for pair in ((np.arange(3), np.array([2, 1])), [np.arange(3), np.array([2, 1])]):
        assert values(ds.PackedSequence(pair)) == [[0, 1, 2], [2, 1], None, None]


@pytest.mark.parametrize("data", [np.arange(3), (np.arange(3),), 3, None])
def test_data_alone_is_refused(data: Any) -> None:
    with pytest.raises(TypeError, match="must be a pair"):
        ds.PackedSequence(data)


def test_what_is_no_tensor_and_no_permutation_is_refused() -> None:
    with pytest.raises(TypeError, match="batch_sizes must be a Tensor or a NumPy array, not a list"):
        ds.PackedSequence(np.arange(3), [2, 1])
    with pytest.raises(TypeError, match="dtype"):
        ds.PackedSequence(np.array(["a"]), np.array([1]))
    with pytest.raises(RuntimeError, match="twice"):
        ds.PackedSequence(np.arange(3), np.array([2, 1]), np.array([0, 0]))


# ---------------------------------------------------------------------- as one resource


def test_it_counts_as_one_and_its_bytes_are_those_of_its_fields() -> None:
    with ds.dispose_scope() as scope:
        packed = packed_of()
        assert scope.live == (packed,)
        assert len(scope) == 1
        assert scope.nbytes == 8 * (5 + 3 + 2 + 2)
        now = ds.statistics()
        assert (now.created_in_scope, now.live, now.live_nbytes) == (1, 1, 96)
        for field in packed:
            assert field in scope
            assert ds.owner_of(field) is scope
    after = ds.statistics()
    assert (after.created_in_scope, after.disposed_in_scope, after.live, after.moved) == (1, 1, 0, 0)


def test_leaving_its_scope_kills_every_field() -> None:
    with ds.dispose_scope():
        packed = packed_of()
        fields = tuple(packed)
    assert packed.disposed
    assert ds.is_disposed(packed)
    for before, after in zip(fields, packed, strict=True):
        assert before is after
        assert ds.is_disposed(after)
        with pytest.raises(ds.DisposedError):
            after + 1
    assert "disposed Tensor" in repr(packed)
    assert len(packed) == 4


@pytest.mark.parametrize(
    "use",
    [
        lambda packed: packed.to(np.float32),
        lambda packed: packed.to("cpu"),
        lambda packed: packed.cpu(),
        lambda packed: packed.cuda(),
        lambda packed: packed.double(),
        lambda packed: packed.pin_memory(),
        lambda packed: packed.is_pinned(),
        lambda packed: packed.is_cuda,
        lambda packed: packed._replace(data=np.ones(5)),
        lambda packed: ds.pad_packed_sequence(packed),
        lambda packed: ds.unpack_sequence(packed),
        copy.copy,
        copy.deepcopy,
        pickle.dumps,
        lambda packed: np.add(packed.data, 1),
        lambda packed: packed.batch_sizes.tolist(),
    ],
)
def test_every_use_after_dispose_raises(use: Any) -> None:
    packed = packed_of()
    packed.dispose()
    with pytest.raises(ds.DisposedError, match="has been disposed"):
        use(packed)


def test_dispose_is_idempotent_and_counted_once() -> None:
    packed = packed_of()
    packed.dispose()
    packed.dispose()
    ds.dispose(packed)
    assert ds.statistics().disposed_unscoped == 1


def test_a_verb_on_a_field_acts_on_the_whole() -> None:
    with ds.dispose_scope() as outer:
        with ds.dispose_scope() as scope:
            packed = packed_of()
            assert scope.move_to_outer(packed.batch_sizes) is packed.batch_sizes
        assert packed in outer
        assert ds.statistics().moved == 1
        ds.dispose(packed.data)
        assert packed.disposed
        assert ds.is_disposed(packed.batch_sizes)
    other = packed_of()
    other.data.dispose()
    assert other.disposed
    with ds.dispose_scope(strict=True) as strict:
        whole = packed_of()
        with pytest.raises(ds.NotOwnedError, match="member of a PackedSequence"):
            strict.move_to_outer(whole.data)


def test_it_moves_as_a_whole_and_in_trees() -> None:
    with ds.dispose_scope() as scope:
        batch = {"packed": [packed_of()], "same": None}
        batch["same"] = batch["packed"][0]
        temporary = packed_of()
        scope.move_to_outer(batch)
    kept = batch["packed"][0]
    assert not kept.disposed
    assert kept.data.tolist() == [0, 0, 1, 1, 2]
    assert temporary.disposed
    assert ds.statistics().detached == 1
    kept.dispose()


def test_the_tensors_given_to_it_stay_resources_of_their_own() -> None:
    with ds.dispose_scope() as scope:
        data, sizes = ds.arange(3), ds.asarray(np.array([2, 1]))
        packed = ds.PackedSequence(data, sizes)
        assert len(scope) == 3
        assert packed.data is not data
        assert np.shares_memory(packed.data.numpy(), data.numpy())
        assert scope.nbytes == 3 * 8 + 2 * 8
        packed.dispose()
        assert data.tolist() == [0, 1, 2]
        assert sizes.tolist() == [2, 1]
        another = ds.PackedSequence(data, sizes)
        data.dispose()
        assert another.data.tolist() == [0, 1, 2]
        with pytest.raises(ds.DisposedError):
            ds.PackedSequence(data, sizes)


def test_two_packed_sequences_may_share_memory_and_not_their_lives() -> None:
    packed = packed_of()
    double = packed.double()
    packed.dispose()
    assert double.batch_sizes.tolist() == [2, 2, 1]
    assert double.data.dtype == np.float64
    double.dispose()


def test_fields_that_outlive_it_by_reference_become_resources_of_its_owner() -> None:
    with ds.dispose_scope() as scope:
        data, sizes, _, _ = ds.pack_sequence([np.arange(2)])
        assert data.tolist() == [0, 1]
        assert len(scope) == 2
        assert data in scope
        assert ds.statistics().live == 2
    assert ds.is_disposed(data)
    assert ds.is_disposed(sizes)
    now = ds.statistics()
    assert now.created_in_scope == now.disposed_in_scope == 3
    kept = ds.pack_sequence([np.arange(2)]).data
    assert kept.tolist() == [0, 1]
    kept.dispose()


def test_it_dies_by_reference_count_without_garbage() -> None:
    gc.disable()
    try:
        packed = packed_of()
        alive = weakref.ref(packed)
        field = weakref.ref(packed.data)
        del packed
        assert alive() is None
        assert field() is None
    finally:
        gc.enable()


def test_a_refused_constructor_leaves_nothing_behind() -> None:
    with ds.dispose_scope() as scope:
        for fields in ((np.arange(3), [1]), (np.arange(3), np.array([1]), np.array([5]))):
            with pytest.raises((TypeError, RuntimeError)):
                ds.PackedSequence(*fields)
        assert len(scope) == 0
    assert ds.statistics().created_in_scope == 0


# ---------------------------------------------------------------------- copies and conversions


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_it_survives_pickling(protocol: int) -> None:
    packed = packed_of(1, 4, 2)
    again = pickle.loads(pickle.dumps(packed, protocol))
    assert type(again) is ds.PackedSequence
    assert values(again) == values(packed)
    assert ds.statistics().created_unscoped == 2
    assert ds.is_disposed(again) is False


def test_a_copy_shares_memory_and_a_deep_copy_does_not() -> None:
    packed = packed_of()
    shallow, deep = copy.copy(packed), copy.deepcopy([packed, packed])
    assert deep[0] is deep[1]
    packed.data[0] = 9
    assert shallow.data.tolist()[0] == 9
    assert deep[0].data.tolist()[0] == 0
    assert values(deep[0])[1:] == values(packed)[1:]
    assert ds.statistics().created_unscoped == 3
    packed.dispose()
    assert not shallow.disposed


def test_a_subclass_stays_one() -> None:
    class Named(ds.PackedSequence):
        pass

    packed = Named(np.arange(3), np.array([2, 1]))
    assert type(packed.float()) is type(copy.deepcopy(packed)) is type(packed._replace(data=np.ones(3))) is Named
    assert repr(packed).startswith(f"{Named.__qualname__}(data=")
    with ds.dispose_scope() as scope:
        mine = Named(np.arange(3), np.array([2, 1]))
        assert len(scope) == 1
    assert mine.disposed


def test_to_returns_itself_where_nothing_changes() -> None:
    packed = packed_of()
    assert packed.to() is packed
    for unchanged in (np.int64, "int64", "cpu", "cpu:0", packed.data, None):
        assert packed.to(unchanged) is packed
    assert packed.to("cpu", np.int64, True) is packed
    assert packed.cpu() is packed
    assert packed.to(device="cpu", dtype=np.int64) is packed
    for copied in (packed.to("cpu", copy=True), packed.to(np.int64, False, True), packed.to(copy=True)):
        assert copied is not packed
        assert values(copied) == values(packed)
        assert not np.shares_memory(copied.data.numpy(), packed.data.numpy())
    assert packed.to("cpu", np.float32).data.dtype == np.float32
    assert packed.to(other=np.ones(1, np.int8)).data.dtype == np.int8
    assert packed.cpu(dtype=np.float16).data.dtype == np.float16


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "meta", "foo", "cpu:1", "cpu:x"])
def test_there_is_no_device_but_the_cpu(device: str) -> None:
    packed = packed_of()
    with pytest.raises(RuntimeError, match=f"no device '{device}'"):
        packed.to(device)
    with pytest.raises(RuntimeError, match="no device"):
        packed.to(device=device)
    with pytest.raises(RuntimeError, match="no device 'cuda'"):
        packed.cuda()
    assert packed.is_cuda is False
    assert packed.is_pinned() is False


@pytest.mark.parametrize("given", [(object(),), ("U3",), (np.int64, 3), ("cpu", np.int64, True, True, 5), ([1, 2, 3],)])
def test_to_refuses_what_is_neither_dtype_nor_device(given: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        packed_of().to(*given)
