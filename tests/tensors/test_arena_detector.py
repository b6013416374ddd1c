"""A leak detector sees plain arrays, inside and outside of scopes, on every thread, unowned."""

import gc
import os
import sys
import threading

import numpy as np
import pytest

import disposescope as ds
from disposescope.leaks import LeakDetector
from disposescope.leaks.births.log import LOG, RecordedMemory
from tests.leaks.births import arrays_are_seen, line_of, row_of

pytestmark = arrays_are_seen


def arrays_of(detector: LeakDetector) -> list[RecordedMemory]:
    return [seen for seen in detector.memory() if seen.kind == "numpy.ndarray"]


def test_arrays_outside_of_every_scope_are_seen_until_they_go():
    with LeakDetector() as detector:
        kept = np.ones(1000)
        line = sys._getframe().f_lineno - 1
        [seen] = arrays_of(detector)
        assert (seen.nbytes, seen.device, row_of(seen).scope, line_of(seen)) == (8000, "cpu:0", None, line)
        view = kept[:3]
        del kept
        assert arrays_of(detector) == [seen]
        assert seen() is seen
        del view
        assert arrays_of(detector) == []
        assert seen() is None


def test_arrays_in_a_scope_are_seen_with_its_name_and_escape_as_ever():
    with LeakDetector() as detector:
        with ds.dispose_scope("step") as step:
            kept = np.zeros((3, 3))
            assert step.nbytes == 72
        [seen] = arrays_of(detector)
        outside = np.zeros(5)
        assert {row_of(one).scope for one in arrays_of(detector)} == {"step", None}
    assert (seen.nbytes, kept.shape, outside.shape) == (72, (3, 3), (5,))


def test_the_memory_of_a_tensor_is_reported_once():
    with LeakDetector() as detector:
        tensor = ds.zeros(100)
        array = np.ones(50)
        records = list(detector.take_snapshot())
    assert [(record.kind, record.nbytes) for record in records] == [("Tensor", 800), ("numpy.ndarray", 400)]
    assert tensor.shape[0] + array.shape[0] == 150


def test_an_array_that_changes_its_size_is_reported_with_its_present_bytes():
    with LeakDetector() as detector:
        kept = np.zeros(10)
        kept.resize(100_000, refcheck=False)
        [seen] = arrays_of(detector)
        assert seen.nbytes == 800_000
        kept.resize(99_000, refcheck=False)
        [seen] = arrays_of(detector)
        assert seen.nbytes == 792_000
        del kept
        assert arrays_of(detector) == []


def test_threads_that_start_while_a_detector_is_open_are_watched():
    kept = []
    with LeakDetector() as detector:
        thread = threading.Thread(target=lambda: kept.append(np.ones(7)), name="loader")
        thread.start()
        thread.join()
        [seen] = arrays_of(detector)
    assert (seen.nbytes, len(kept)) == (56, 1)


def test_afterwards_the_arena_serves_no_array_outside_of_scopes():
    before = ds.arena_statistics().blocks
    with LeakDetector():
        with ds.dispose_scope():
            pass
        inside = np.ones(100)
        assert ds.arena_statistics().blocks == before + 1
    outside = np.ones(100)
    assert ds.arena_statistics().blocks == before + 1
    assert float(inside[0] + outside[0]) == 2


def test_a_detector_may_be_opened_in_a_scope_and_closed_after_it_and_the_other_way_round():
    before = ds.arena_statistics().blocks
    with ds.dispose_scope():
        detector = LeakDetector().__enter__()
    kept = [np.ones(10)]
    detector.__exit__(None, None, None)
    assert len(arrays_of(detector)) == 1
    detector = LeakDetector().__enter__()
    with ds.dispose_scope() as scope:
        detector.__exit__(None, None, None)
        kept.append(np.ones(10))
        assert scope.nbytes == 80
    kept.append(np.ones(10))
    assert ds.arena_statistics().blocks == before + 2


def test_many_arrays_born_and_freed_in_any_order_leave_what_is_alive():
    import random

    chance = random.Random(3)
    with LeakDetector() as detector:
        alive: dict[int, np.ndarray] = {}
        for index in range(5000):
            alive[index] = np.empty(chance.choice((1, 10, 100, 1000, 30_000)))
            if chance.random() < 0.8:
                del alive[chance.choice(list(alive))]
        assert sum(seen.nbytes for seen in arrays_of(detector)) == sum(array.nbytes for array in alive.values())
        alive.clear()
        assert arrays_of(detector) == []


def test_sampling_estimates_the_bytes():
    with LeakDetector(sample_nbytes=100_000) as detector:
        kept = [np.ones(125) for _ in range(4000)]
    found = arrays_of(detector)
    assert 5 < len(found) < 120
    estimate = sum(row_of(seen).weight * seen.nbytes for seen in found)
    assert 0.3 < estimate / (len(kept) * 1000) < 1.9, "some 40 samples: one standard deviation is 16 %"


def test_arrays_that_outlive_detector_and_knowledge_are_freed_in_peace():
    kept = []
    for _ in range(3):
        with LeakDetector():
            kept.append(np.ones(1000))
        gc.collect()
    kept.clear()
    assert LOG.counts()[3] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_watches_on_and_knows_nothing_of_its_parents_arrays():
    with LeakDetector() as detector:
        kept = np.ones(3)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            own = np.ones(4)
            told = [seen.nbytes for seen in arrays_of(detector)]
            os.write(writing, repr(told).encode() + b"." * own.ndim)
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reading, 100) == b"[32]."
        assert [seen.nbytes for seen in arrays_of(detector)] == [24]
    assert kept.shape == (3,)
