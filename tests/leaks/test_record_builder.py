"""Records of resources, and of memory that no resource stands for."""

import gc
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import disposescope as ds
from disposescope.leaks.births.log import LOG, find_recorded_memory
from disposescope.leaks.births.record_builder import RecordBuilder
from disposescope.scopes.framework import LiveMemory
from disposescope.scopes.kinds import kind_of
from tests.leaks.births import arrays_are_seen


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
        builder = RecordBuilder(5)
        records, subjects, kept = builder.build_records(entries, rows)
        assert [record.kind for record in records] == [kind_of(entry()).name for entry in subjects]
        assert [row.number for row in kept] == [LOG.recall(entry).number for entry in subjects]
        assert list(builder.disposals) == [entry for entry in subjects if entry() is disposed]
        assert [record.scope for record in records] == [row.scope for row in kept]
        assert [record.generation for record in records] == [5 - row.closings for row in kept]
        assert {record.storages[0][0] for record in records[:2]} == {0}, "a view has the storage of its base"
        assert all(0 <= record.age_s < 60 for record in records)
        snapshot = detector.take_snapshot()
    assert {type(entry()) for entry in subjects} == {type(base), Owned, Pair}
    assert [record.state for record in snapshot].count("disposed") == 1
    assert [record.is_view for record in snapshot][1] is True
    assert (len(tensors), scalar.shape, disposed.disposed) == (3, (), True)


def test_records_are_values() -> None:
    with ds.LeakDetector() as detector:
        kept = ds.zeros(3)
        [record] = detector.take_snapshot()
    assert hash(record) == hash(replace(record))
    assert pickle.loads(pickle.dumps(record)) == record
    assert replace(record, nbytes=1).nbytes == 1
    with pytest.raises(AttributeError):
        record.nbytes = 5
    assert len(kept) == 3


def test_a_snapshot_leaves_no_work_to_the_garbage_collector() -> None:
    with ds.LeakDetector() as detector:
        kept = [ds.zeros((2, 3)), ds.zeros(()), np.ones(3)]
        snapshot = detector.take_snapshot()
        memory = detector.memory()
    # A collection finds out by itself that tuples of numbers need none, and the next one those of
    # such tuples.
    gc.collect()
    gc.collect()
    assert len(snapshot) == len(kept)
    for record in snapshot:
        for thing in (record, record.storages, *record.storages, record.shape):
            assert not gc.is_tracked(thing)
    assert not any(map(gc.is_tracked, memory))
    del record, snapshot, detector, memory
    gc.collect()


def is_there(reference: Any, _number: int) -> bool:
    return reference() is not None


def test_memory_that_is_seen() -> None:
    anchors = [Anchor() for _ in range(4)]
    with ds.LeakDetector():
        for size, anchor in enumerate(anchors):
            LOG.record_memory(anchor, "relu", size + 1, "kind" if size else "other kind", "cpu:0")
        del anchors[3], anchor
        known = LOG.recorded_memory(0, 1 << 60)

        def identify(thing: Any) -> tuple[int, int] | None:
            return None if type(thing) is not Anchor else (id(thing), 100)

        pieces, rows = find_recorded_memory(LiveMemory("kind", *known, identify, is_there), {id(anchors[2])})
        assert [(piece.identity, piece.nbytes, piece.kind, piece.device) for piece in pieces] == [
            (id(anchors[1]), 100, "kind", "cpu:0")
        ]
        builder = RecordBuilder(5)
        [record] = builder.build_memory_records(pieces, rows)
        assert (record.kind, record.nbytes, record.storages, record.op) == ("kind", 100, ((0, 100),), "relu")
        assert (record.state, record.scope, record.generation) == ("alive", None, 5 - rows[0].closings)
        assert builder.numbers == {id(anchors[1]): 0}
        [piece] = pieces
        assert piece() is piece
        anchors.clear()
        assert piece() is None


@arrays_are_seen
def test_blocks_are_seen_until_they_are_used_for_something_else() -> None:
    with ds.LeakDetector() as detector:
        kept = [np.ones(50_000)]
        [piece] = [piece for piece in detector.memory() if piece.nbytes >= 400_000]
        assert piece() is piece
        kept.clear()
        kept.append(np.ones(50_000))
        assert piece() is None


def test_what_goes_wrong_in_the_middle_is_raised() -> None:
    def fail(*_given: object) -> Any:
        raise ZeroDivisionError

    with ds.LeakDetector(), ds.dispose_scope():
        anchor = Anchor()
        LOG.record_memory(anchor, None, 10, "kind", "cpu:0")
        with pytest.raises(ZeroDivisionError):
            find_recorded_memory(LiveMemory("kind", *LOG.recorded_memory(0, 1 << 60), fail, is_there), ())
        with pytest.raises(ValueError, match="longer"):
            RecordBuilder(0).build_records([], LOG.recorded_memory(0, 1 << 60)[1])
