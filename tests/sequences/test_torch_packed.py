"""PyTorch's packed sequence is one resource: it counts once, moves and dies as one, and shares with its conversions."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import disposescope as ds
from disposescope.scopes._entries import LIVE, SHARED

torch = pytest.importorskip("torch")
rnn = pytest.importorskip("torch.nn.utils.rnn")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    gc.collect()
    before = len(LIVE), len(SHARED)
    yield
    gc.collect()
    ds.statistics()
    assert (len(LIVE), len(SHARED)) == before


def sequences() -> list[Any]:
    return [torch.ones(2, 3), torch.ones(4, 3)]


@pytest.mark.parametrize("pack", [ds.pack_sequence, rnn.pack_sequence])
def test_it_moves_and_dies_as_one_whoever_made_it(pack: Any) -> None:
    with ds.dispose_scope("outer") as outer:
        with ds.dispose_scope() as scope:
            packed = pack(sequences(), enforce_sorted=False)
            assert packed in scope
            assert ds.owner_of(packed) is scope
            assert scope.move_to_outer(packed) is packed
            assert len(scope) == 0
        assert len(outer) == 1
        assert outer.live == (packed,)
        assert type(outer.live[0]) is rnn.PackedSequence
        assert not ds.is_disposed(packed)
    assert ds.is_disposed(packed)
    assert all(map(ds.is_disposed, packed))


def test_what_we_make_counts_once() -> None:
    with ds.dispose_scope() as scope:
        given = sequences()
        ds.reset_statistics()
        packed = ds.pack_sequence(given, enforce_sorted=False)
        assert ds.statistics().created_in_scope == 1
        assert len(scope) == 3
        assert ds.statistics().live == 3
        scope.dispose_everything()
        assert ds.statistics().disposed_in_scope == 3
    with pytest.raises(ds.DisposedError):
        packed.data.sum()


def test_a_member_stands_for_it() -> None:
    with ds.dispose_scope("outer") as outer:
        with ds.dispose_scope() as scope:
            packed = ds.pack_sequence(sequences(), enforce_sorted=False)
            scope.move_to_outer(packed.batch_sizes)
        assert ds.owner_of(packed.data) is outer
        ds.dispose(packed.sorted_indices)
        assert all(map(ds.is_disposed, packed))


def test_any_tuple_around_the_same_data_is_the_same_resource() -> None:
    with ds.dispose_scope() as scope:
        packed = ds.pack_sequence(sequences(), enforce_sorted=False)
        again = rnn.PackedSequence(*packed)
        assert again in scope
        del packed
        gc.collect()
        ds.dispose(again)
        assert ds.is_disposed(again)
        assert len(scope) == 0


@pytest.mark.parametrize("first", ["source", "conversion"])
def test_a_conversion_shares_members_and_the_last_one_takes_them_along(first: str) -> None:
    with ds.dispose_scope():
        source = ds.pack_sequence(sequences(), enforce_sorted=False)
        conversion = ds.attach(source.double())
        assert source.to(torch.float32) is source
        assert conversion.batch_sizes is source.batch_sizes
        gone, left = (source, conversion) if first == "source" else (conversion, source)
        ds.dispose(gone)
        assert ds.is_disposed(gone)
        assert not any(map(ds.is_disposed, left))
        assert len(ds.unpack_sequence(left)) == 2
        ds.dispose(left)
        assert all(map(ds.is_disposed, left))


def test_a_conversion_that_was_moved_out_outlives_its_source() -> None:
    with ds.dispose_scope("outer") as outer:
        with ds.dispose_scope() as scope:
            source = ds.pack_sequence(sequences(), enforce_sorted=False)
            hidden, _ = torch.nn.GRU(3, 2)(source)
            kept = scope.move_to_outer([source.double(), hidden])
        assert ds.is_disposed(source)
        assert len(outer) == 2
        for packed in kept:
            assert ds.unpack_sequence(packed)[1].shape[0] == 4
    assert all(ds.is_disposed(member) for packed in kept for member in packed)


def test_it_dies_by_reference_count_and_what_outlives_it_stays_owned() -> None:
    with ds.dispose_scope() as scope:
        packed = ds.pack_sequence(sequences(), enforce_sorted=False)
        data = packed.data
        del packed
        assert ds.owner_of(data) is scope
        assert len(scope) == 1
        packed = ds.pack_sequence(sequences(), enforce_sorted=False)
        ds.reset_statistics()
        del packed
        assert ds.statistics().disposed_in_scope == 1
        assert len(scope) == 1
    assert ds.is_disposed(data)


def test_what_a_scope_does_not_own_of_it_is_left_where_it_is() -> None:
    data = torch.ones(3)
    with ds.dispose_scope("outer") as outer:
        with ds.dispose_scope() as scope:
            packed = rnn.PackedSequence(data, torch.tensor([2, 1]))
            scope.move_to_outer(packed)
        assert packed.batch_sizes in outer
    assert data.sum() == 3
    assert ds.is_disposed(packed.batch_sizes)


def test_attach_takes_all_of_one_that_was_made_outside() -> None:
    packed = rnn.pack_sequence(sequences(), enforce_sorted=False)
    with ds.dispose_scope() as scope:
        scope.attach({"batch": packed})
        assert len(scope) == 1
        assert ds.statistics().attached == 1
    assert all(map(ds.is_disposed, packed))
    with ds.dispose_scope() as scope, pytest.raises(ds.DisposedError):
        scope.attach(packed)


def test_it_is_a_member_of_a_composite_of_the_users_own() -> None:
    class Batch:
        def __init__(self, packed: Any) -> None:
            self.packed = packed

    ds.register_kind(Batch, members=lambda batch: {"packed": batch.packed, "data": batch.packed.data})
    with ds.dispose_scope() as scope:
        batch = scope.attach(Batch(rnn.pack_sequence(sequences(), enforce_sorted=False)))
        assert batch.packed in scope
        assert ds.owner_of(batch.packed.batch_sizes) is scope
    assert all(map(ds.is_disposed, batch.packed))


def test_mixed_devices_are_refused_and_nothing_moves() -> None:
    packed = rnn.pack_sequence(sequences(), enforce_sorted=False)
    mixed = rnn.PackedSequence(packed.data.to("meta"), *packed[1:])
    with ds.dispose_scope() as scope:
        with pytest.raises(ds.DeviceMismatchError, match="data is on meta:0, sorted_indices is on cpu:0"):
            scope.attach(mixed)
        assert len(scope) == 0


def test_batch_sizes_are_on_the_cpu_and_bytes_count_where_they_are() -> None:
    with ds.dispose_scope():
        packed = ds.pack_sequence([torch.ones(length, device="meta") for length in (4, 2)])
        rows = ds.statistics().by_device
        assert rows["meta:0"].live_nbytes == 0
        assert rows["cpu:0"].live_nbytes == packed.batch_sizes.nbytes


def test_a_scope_that_detaches_graphs_detaches_its_data() -> None:
    with ds.dispose_scope("outer"):
        with ds.dispose_scope(graph="detach") as scope:
            packed = ds.pack_sequence([torch.ones(3, requires_grad=True) * 2])
            scope.move_to_outer(packed)
        assert packed.data.grad_fn is None
        assert packed.data.tolist() == [2.0] * 3


HELD: list[Any] = []


def test_a_leak_report_tells_who_holds_it() -> None:
    with ds.LeakDetector() as detector:
        with ds.dispose_scope("step") as scope:
            HELD.append(scope.move_to_outer(ds.pack_sequence(sequences(), enforce_sorted=False)))
        [group] = detector.report().leaks
        assert [record.kind for record in group.records] == ["torch.nn.utils.rnn.PackedSequence"]
        assert group.holder.endswith(".HELD[0][0]")
        HELD.clear()


def test_what_is_packed_and_padded_counts_against_the_budget() -> None:
    given = [torch.ones(1000) for _ in range(20)]
    with ds.dispose_scope(budget="100KiB") as scope:
        packed = ds.pack_sequence(given)
        for call in (
            lambda: ds.pad_sequence(given),
            lambda: ds.unpack_sequence(packed),
            lambda: ds.pack_sequence(given),
        ):
            with pytest.raises(MemoryError):
                call()
        assert len(scope) == 1
