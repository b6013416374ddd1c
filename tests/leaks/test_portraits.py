"""Records that are made many at once are those that are made one by one."""

import gc
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import disposescope as ds
from disposescope.leaks.births.log import LOG, RowList, Seen, is_referenced, joined, see, see_in_python
from disposescope.leaks.births.record_builder import RecordBuilder
from disposescope.scopes.identity import DEAD


class Owned:
    """A resource of a user's own."""

    def dispose(self) -> None:
        """Nothing to do."""


class Pair:
    """A composite."""

    def __init__(self) -> None:
        self.left, self.right = ds.zeros(3), ds.ones(4)


ds.register_kind(Pair, members=lambda pair: (pair.left, pair.right))


class Anchor:
    """What stands for memory."""


def ageless(records: Any) -> list[Any]:
    return [replace(record, age_s=None) for record in records]


def test_resources_of_all_sorts() -> None:
    with ds.LeakDetector() as detector:
        base = ds.zeros(100_000)
        with ds.dispose_scope("step") as step:
            tensors = step.move_to_outer([base, base[:5], ds.ones((2, 3), dtype="float32")])
            disposed = ds.zeros(7)
            with ds.dispose_scope():
                owned = step.attach(Owned())
                pair = step.attach(Pair())
                step.move_to_outer([owned, pair])
        scalar = ds.tensor(1.5)
        entries, rows = LOG.entries(0, 1 << 60)
        many, one_by_one = RecordBuilder(5), RecordBuilder(5)
        records, subjects, kept = many.build_records(entries, rows)
        others, other_subjects, other_kept = one_by_one.build_records_in_python(entries, rows)
        assert ageless(records) == ageless(others)
        assert (subjects, list(kept)) == (other_subjects, list(other_kept))
        assert (many.numbers, many.disposals) == (one_by_one.numbers, one_by_one.disposals)
        assert list(many.disposals) == [entry for entry in subjects if entry() is disposed]
        ages = [[record.age_s for record in those] for those in (records, others)]
        assert ages[0] == pytest.approx(ages[1], abs=1)
        snapshot = detector.take_snapshot()
    assert {type(entry()) for entry in subjects} == {type(base), Owned, Pair}
    assert [record.state for record in snapshot].count("disposed") == 1
    assert [record.is_view for record in snapshot][1] is True
    assert (len(tensors), scalar.shape, disposed.disposed) == (3, (), True)


def test_records_that_were_made_many_at_once_are_records_like_any_other() -> None:
    with ds.LeakDetector() as detector:
        kept = ds.zeros(3)
        [record] = detector.take_snapshot()
    assert hash(record) == hash(replace(record))
    assert pickle.loads(pickle.dumps(record)) == record
    assert replace(record, nbytes=1).nbytes == 1
    with pytest.raises(AttributeError):
        record.nbytes = 5
    assert len(kept) == 3


@pytest.mark.skipif(LOG.api is None, reason="this is about the compiled log")
def test_a_snapshot_leaves_nothing_for_the_garbage_collector_to_go_through() -> None:
    with ds.LeakDetector() as detector:
        kept = [ds.zeros((2, 3)), ds.zeros(()), np.ones(3)]
        snapshot = detector.take_snapshot()
    assert len(snapshot) == len(kept)
    for record in snapshot:
        for thing in (record, record.storages, *record.storages, record.shape):
            assert not gc.is_tracked(thing)
    assert not any(map(gc.is_tracked, detector.memory()))
    del record, snapshot, detector
    gc.collect()


def test_memory_that_is_seen() -> None:
    anchors = [Anchor() for _ in range(4)]
    with ds.LeakDetector():
        for size, anchor in enumerate(anchors):
            LOG.sight(anchor, "relu", size + 1, "kind" if size else "other kind", "cpu:0")
        del anchors[3], anchor
        known = LOG.sightings(0, 1 << 60)

        def identify(thing: Any) -> tuple[int, int] | None:
            return None if type(thing) is not Anchor else (id(thing), 100)

        but = {LOG.key_of(id(anchors[2]))}
        told = [look("kind", but, identify, is_referenced, *known) for look in (see, see_in_python)]
        (pieces, rows), (others, other_rows) = told
        assert (pieces, list(rows)) == (others, list(other_rows))
        assert [(piece.identity, piece.nbytes, piece.kind, piece.device) for piece in pieces] == [
            (id(anchors[1]), 100, "kind", "cpu:0")
        ]
        many, one_by_one = RecordBuilder(5), RecordBuilder(5)
        assert ageless(many.build_memory_records(pieces, rows)) == ageless(
            one_by_one.build_memory_records_in_python(others, rows)
        )
        assert many.numbers == one_by_one.numbers == {LOG.key_of(id(anchors[1])): 0}
        [piece] = pieces
        assert piece() is piece
        anchors.clear()
        assert piece() is None


def test_identities_of_any_type_and_size_are_told_apart() -> None:
    identities = [0, 1, 63, 64, 128, 1 << 57, 1 << 63, (1 << 64) - 1, 1 << 64, -1, ~id(LOG), ("cuda", 7), "a", None]
    keys = [LOG.key_of(identity) for identity in identities]
    assert keys == [LOG.key_of(identity) for identity in identities]
    for place, key in enumerate(keys):
        assert all(key is other or key != other for other in keys[:place] + keys[place + 1 :]), identities[place]


def test_blocks_are_seen_until_they_are_used_for_something_else() -> None:
    with ds.LeakDetector() as detector:
        kept = [np.ones(50_000)]
        [piece] = [piece for piece in detector.memory() if piece.nbytes >= 400_000] or [None]
        if piece is None:
            assert LOG.api is None, "without the compiled parts arrays are not seen"
            return
        assert piece() is piece
        kept.clear()
        kept.append(np.ones(50_000))
        assert piece() is None


@pytest.mark.skipif(LOG.api is None, reason="this is about the compiled rows")
def test_rows_are_a_sequence() -> None:
    with ds.LeakDetector():
        kept = [ds.zeros(size) for size in range(1, 4)]
        entries, rows = LOG.entries(0, 1 << 60)
        assert [LOG.recall(entry) for entry in entries] == list(rows)
        assert rows[0][1] == 8
        assert rows.column(1, [2, 0]) == [24, 8]
        assert list(rows + rows) == [*rows, *rows]
        assert list(joined([rows, RowList(), rows])) == [*rows, *rows]
        assert joined([RowList(), rows]) is rows
        assert list(joined([rows, RowList([None])])) == [*rows, None]
        assert list(joined([RowList()])) == []
        for wrong, expected in (
            (lambda: rows[3], IndexError),
            (lambda: rows.column(7, [0]), IndexError),
            (lambda: rows.column(-1, [0]), IndexError),
            (lambda: rows.column(1, [3]), IndexError),
            (lambda: rows.column(1, ["0"]), TypeError),
            (lambda: rows.column("1", [0]), TypeError),
            (lambda: rows.column(1), TypeError),
            (lambda: rows + RowList(), TypeError),
            (lambda: type(rows)(), TypeError),
        ):
            with pytest.raises(expected):
                wrong()
    assert len(kept) == 3


@pytest.mark.skipif(LOG.api is None, reason="this is about the compiled log")
def test_what_goes_wrong_in_the_middle_is_raised() -> None:
    def fail(*_given: object) -> Any:
        raise ZeroDivisionError

    with ds.LeakDetector(), ds.dispose_scope() as scope:
        kept = [ds.zeros(3), scope.attach(Pair())]
        anchor = Anchor()
        LOG.sight(anchor, None, 10, "kind", "cpu:0")
        entries, rows = LOG.entries(0, 1 << 60)
        known = LOG.sightings(0, 1 << 60)
        record: Any = type(ds.take_snapshot().records[0])
        record_builder = RecordBuilder(0)
        given = [record, {}, record_builder.sites, 0.0, 0, DEAD, {}, record_builder.record, entries, rows]
        for place, wrong, expected in (
            (2, fail, ZeroDivisionError),
            (2, lambda _number: None, TypeError),
            (7, fail, ZeroDivisionError),
            (0, Anchor, AttributeError),
            (0, None, TypeError),
            (8, entries[1:], ValueError),
        ):
            asked = [*given]
            asked[place] = wrong
            with pytest.raises(expected):
                LOG.build_records(*asked)
        for identify, expected in (
            (fail, ZeroDivisionError),
            (lambda _thing: 7, TypeError),
            (lambda _: (1, 2, 3), TypeError),
        ):
            with pytest.raises(expected):
                LOG.see(Seen, "kind", record_builder.sites, (), identify, is_referenced, *known, None)
        with pytest.raises(TypeError):
            LOG.see(None, "kind", record_builder.sites, (), None, is_referenced, *known, None)
        with pytest.raises(TypeError):
            LOG.build_memory_records(record, {}, record_builder.sites, 0.0, 0, Seen, [anchor], known[1])
        with pytest.raises(TypeError):
            LOG.is_in_use(1)
        with pytest.raises(TypeError):
            LOG.born(anchor)
    assert len(kept) == 2
