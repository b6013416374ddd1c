"""The birth log: births by line, passes, samples; it keeps nothing alive."""

import gc
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from operator import attrgetter
from types import FrameType
from typing import Any

import pytest

import disposescope as ds
from disposescope.leaks import LeakDetector
from disposescope.leaks.births.compiled import untrack
from disposescope.leaks.births.log import LOG
from disposescope.scopes.identity import LIVE


class Anchor:
    """What stands for memory."""


@pytest.fixture
def log() -> Iterator[Any]:
    log: Any = LOG
    gc.collect()
    log.clear()
    log.open(1, 0)
    yield log
    log.close()
    log.clear()


def all_of(known: Any) -> list[Any]:
    return list(zip(*known(0, 1 << 60), strict=True))


def test_memory_is_known_until_its_anchor_has_gone(log: Any) -> None:
    anchor = Anchor()
    assert log.record_memory(anchor, "relu", 4096, "torch.Tensor", "cpu:0")
    line = sys._getframe().f_lineno - 1
    [(reference, row)] = all_of(log.recorded_memory)
    assert reference() is anchor
    kind, device, op, places, births, live, nbytes, peak, *_ = log.site(row.site)
    assert (kind, device, op, births, live, nbytes, peak) == ("torch.Tensor", "cpu:0", "relu", 1, 1.0, 4096, 4096)
    [(code, instruction)] = places
    assert code is sys._getframe().f_code
    assert next(found for start, end, found in code.co_lines() if start <= instruction < end) == line
    assert (row.nbytes, row.scope, row.weight) == (4096, None, 1.0)
    assert log.live_nbytes() == {"cpu:0": 4096}
    watch = weakref.ref(anchor)
    del anchor, reference
    assert watch() is None
    assert all_of(log.recorded_memory) == []
    assert log.live_nbytes() == {}
    assert log.site(row.site)[4:8] == (1, 0.0, 0, 4096)


def test_memory_is_born_once(log: Any) -> None:
    anchor = Anchor()
    assert log.record_memory(anchor, "first", 10, "kind", "cpu:0")
    assert log.record_memory(anchor, "second", 10, "kind", "cpu:0")
    assert len(all_of(log.recorded_memory)) == 1
    assert log.recall_memory(anchor).number == all_of(log.recorded_memory)[0][1].number
    assert log.recall_memory(Anchor()) is None


def test_memory_whose_anchor_is_in_a_cycle_is_known_until_that_is_collected(log: Any) -> None:
    anchor: Any = Anchor()
    anchor.myself = anchor
    log.record_memory(anchor, None, 10, "kind", "cpu:0")
    others = [Anchor() for _ in range(3)]
    for other in others:
        log.record_memory(other, None, 1, "kind", "cpu:0")
    del anchor, other
    assert len(all_of(log.recorded_memory)) == 4
    gc.collect()
    assert [reference() for reference, _ in all_of(log.recorded_memory)] == others
    assert log.live_nbytes() == {"cpu:0": 3}


def test_births_are_reported_in_order_whatever_has_died(log: Any) -> None:
    anchors = [Anchor() for _ in range(5000)]
    for anchor in anchors:
        log.record_memory(anchor, None, 1, "kind", "cpu:0")
    del anchors[::3], anchors[:100], anchors[-100:], anchor
    assert [reference() for reference, _ in all_of(log.recorded_memory)] == anchors
    numbers = [row.number for _, row in all_of(log.recorded_memory)]
    assert numbers == sorted(numbers)
    [reference] = log.recorded_memory(numbers[7], numbers[8])[0]
    assert reference() is anchors[8]
    assert hash(reference) == object.__hash__(reference)
    assert len(log.recorded_memory(0, 0)[0]) == 0


def test_what_is_excluded_is_no_longer_reported_and_is_not_born_again(log: Any) -> None:
    anchor = Anchor()
    log.record_memory(anchor, None, 10, "kind", "cpu:0")
    assert log.exclude(anchor)
    assert not log.exclude(anchor)
    assert log.record_memory(anchor, None, 10, "kind", "cpu:0")
    assert (all_of(log.recorded_memory), log.recall_memory(anchor), log.live_nbytes()) == ([], None, {})


def test_births_come_in_order_and_in_windows(log: Any) -> None:
    anchors = [Anchor() for _ in range(5)]
    moments = []
    for anchor in anchors:
        log.record_memory(anchor, None, 1, "kind", "cpu:0")
        moments.append(log.counts()[0])
    assert [reference() for reference in log.recorded_memory(0, moments[-1])[0]] == anchors
    assert [reference() for reference in log.recorded_memory(moments[1], moments[3])[0]] == anchors[2:4]


def test_the_scope_of_a_birth_is_known(log: Any) -> None:
    named, unnamed = Anchor(), Anchor()
    with ds.dispose_scope("epoch"):
        log.record_memory(named, None, 1, "kind", "cpu:0")
        with ds.dispose_scope():
            log.record_memory(unnamed, None, 1, "kind", "cpu:0")
    rows = [row for _, row in all_of(log.recorded_memory)]
    assert [row.scope for row in rows] == ["epoch", ""]


def test_entries_are_known_until_they_die_or_are_released(log: Any) -> None:
    tensor = ds.zeros(100)
    entry = LIVE[id(tensor)]
    log.born(entry)
    [(found, row)] = all_of(log.entries)
    assert found is entry
    assert row.nbytes == 800
    assert log.recall(entry).number == row.number
    assert log.released(entry)
    assert log.recall(entry).nbytes == 0
    log.died(entry)
    assert log.recall(entry) is None
    assert not log.released(entry)
    assert all_of(log.entries) == []


def test_so_many_frames_are_kept_innermost_first(log: Any) -> None:
    log.open(3, 0)
    anchor = Anchor()

    def inner() -> None:
        log.record_memory(anchor, None, 1, "kind", "cpu:0")

    def outer() -> None:
        inner()

    outer()
    [(_, row)] = all_of(log.recorded_memory)
    assert [code.co_name for code, _ in log.site(row.site).places] == [
        "inner",
        "outer",
        "test_so_many_frames_are_kept_innermost_first",
    ]


def test_a_series_has_what_lived_after_each_pass(log: Any) -> None:
    kept = []
    for _ in range(4):
        kept.append(Anchor())
        log.record_memory(kept[-1], None, 1024, "kind", "cpu:0")
        log.mark("step")
    number = all_of(log.recorded_memory)[0][1].site
    assert log.series(number, "step") == [(1, 1, 1024), (2, 2, 2048), (3, 3, 3072), (4, 4, 4096)]
    assert log.series(number, "other") == []
    kept.clear()
    log.mark("step")
    assert log.series(number, "step")[-1] == (5, 0, 0)
    assert log.passes() == {"step": 5}


def steps(log: Any, kept: list[Anchor], times: int, *, bound: int = 1000) -> int:
    """Take steps that append to a bounded list, and return the number of the site."""
    for _ in range(times):
        kept.append(Anchor())
        del kept[:-bound]
        log.record_memory(kept[-1], None, 100, "kind", "cpu:0")
        log.mark("step")
    return max(row.site for _, row in all_of(log.recorded_memory))


@pytest.mark.parametrize("bound", [1000, 3])
def test_what_lived_while_a_report_held_results_is_estimated_from_before_and_after(log: Any, bound: int) -> None:
    kept: list[Anchor] = []
    alive = [min(step, bound) for step in range(1, 14)]
    number = steps(log, kept, 4, bound=bound)
    log.report_begins()
    held = kept[:]
    steps(log, kept, 4, bound=bound)
    held.clear()
    log.report_ends()
    steps(log, kept, 4, bound=bound)
    assert log.series(number, "step") == [(step, count, 100 * count) for step, count in enumerate(alive[:12], 1)]
    log.report_ends()  # one that was begun before the log was cleared
    steps(log, kept, 1, bound=bound)
    assert log.series(number, "step")[12] == (13, alive[12], 100 * alive[12])


@pytest.mark.parametrize("more", [0, 1])
def test_a_line_goes_on_as_before_where_all_was_freed_while_a_report_held_results(log: Any, more: int) -> None:
    kept: list[Anchor] = []
    number = steps(log, kept, 35)
    log.report_begins()
    held = kept[:]
    steps(log, kept, 25)
    kept.clear()
    held.clear()
    log.report_ends()
    for _ in range(more):
        log.mark("step")
    freed = [(60 + step, 0, 0) for step in range(1, more + 1)]
    assert log.series(number, "step") == [(step, step, 100 * step) for step in range(1, 61)] + freed


def test_a_bounded_list_does_not_grow_while_a_report_holds_what_it_had(log: Any) -> None:
    kept: list[Anchor] = []
    number = steps(log, kept, 40, bound=5)
    log.report_begins()
    held = kept[:]
    steps(log, kept, 30, bound=5)
    assert [count for _, count, _ in log.series(number, "step")] == [*range(1, 6), *([5] * 65)]
    del held


def test_what_dies_while_a_report_may_have_held_it_may_have_been_free_since_that_was_begun(log: Any) -> None:
    kept: list[Anchor] = []
    number = steps(log, kept, 4)
    first = log.site(number).last_birth
    del kept[0]
    assert (log.site(number).last_birth_before_death, log.site(number).held_since) == (first, 0)
    log.report_begins()
    steps(log, kept, 2)
    log.report_begins()
    steps(log, kept, 2)
    del kept[0]
    assert (log.site(number).last_birth_before_death, log.site(number).held_since) == (first + 4, first)
    log.report_ends()
    log.report_ends()
    del kept[0]
    assert log.site(number).held_since == 0


def test_a_long_series_is_thinned_evenly(log: Any) -> None:
    kept = []
    for _ in range(3000):
        kept.append(Anchor())
        log.record_memory(kept[-1], None, 8, "kind", "cpu:0")
        log.mark("step")
    series = log.series(all_of(log.recorded_memory)[0][1].site, "step")
    assert 100 < len(series) <= 257
    assert all(count == number for number, count, _ in series)
    assert series[-1] == (3000, 3000, 24000)


def test_without_a_name_each_birth_is_a_pass(log: Any) -> None:
    kept = []
    for _ in range(4):
        kept.append(Anchor())
        log.record_memory(kept[-1], None, 1024, "kind", "cpu:0")
        log.record_memory(Anchor(), None, 8, "other", "cpu:0")
    number = log.recall_memory(kept[0]).site
    assert log.series(number, None)[:4] == [(1, 1, 1024), (2, 1, 1024), (3, 2, 2048), (4, 2, 2048)]
    assert log.passes() == {}
    for _ in range(3000):
        kept.append(Anchor())
        log.record_memory(kept[-1], None, 8, "kind", "cpu:0")
    assert len(log.series(number, None)) <= 257
    log.clear()
    assert log.series(number, None) == []


def test_somebody_looks_at_births_6_7_8_10_and_so_on_where_python_code_runs(log: Any) -> None:
    seen: list[int] = []
    before = log.counts()[0]

    def look(_has_more: bool) -> bool:
        seen.append(log.counts()[0] - before)
        if seen[-1] == 41:
            raise KeyboardInterrupt
        # At the second one it cannot look yet.
        return len(seen) != 2

    def make(count: int) -> None:
        for _ in range(count):
            log.record_memory(Anchor(), None, 8, "kind", "cpu:0")

    log.look_at_births(look)
    try:
        make(200)
    except KeyboardInterrupt:
        seen.append(-1)
    finally:
        log.look_at_births(None)
    make(100)
    assert seen == [6, 7, 8, 10, 12, 15, 18, 22, 27, 33, 41, -1]


def test_somebody_looks_where_a_device_has_a_quarter_and_8_mib_more_than_before(log: Any) -> None:
    seen: list[tuple[int, bool]] = []
    before, anchors = log.counts()[0], [Anchor() for _ in range(34)]

    def look(has_more: bool) -> bool:
        seen.append((log.counts()[0] - before, has_more))
        return True

    log.look_at_births(look)
    try:
        for _ in range(200):
            log.record_memory(Anchor(), None, 8, "kind", "cpu:0")
        for anchor in anchors:
            log.record_memory(anchor, None, (1 << 20) + 100, "kind", "cpu:0")
    finally:
        log.look_at_births(None)
    # Each is due at 8 MiB, and a quarter, more than at the one before.
    assert [number for number, has_more in seen if has_more] == [208, 218, 231]


@pytest.mark.parametrize("traced", [False, True], ids=["", "under a debugger"])
def test_what_is_born_during_a_look_is_looked_at_without_another_birth(log: Any, traced: bool) -> None:
    seen: list[int] = []
    before = log.counts()[0]

    def make(count: int) -> None:
        for _ in range(count):
            log.record_memory(Anchor(), None, 8, "kind", "cpu:0")

    def look(_has_more: bool) -> bool:
        seen.append(log.counts()[0] - before)
        if len(seen) == 1:
            # As other threads do while the main thread looks.
            make(100)
        return True

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        return trace

    tracer = sys.gettrace()
    log.look_at_births(look)
    try:
        sys.settrace(trace if traced else None)
        make(16)
    finally:
        sys.settrace(tracer)
        log.look_at_births(None)
    assert seen == [6, 106]


def test_somebody_else_looks_while_the_main_thread_waits(log: Any) -> None:
    seen: list[tuple[str, int]] = []
    before, signal, is_done = log.counts()[0], threading.Lock(), threading.Event()
    signal.acquire()

    def look(_has_more: bool) -> bool:
        seen.append((threading.current_thread().name, log.counts()[0] - before))
        return True

    def look_when_woken() -> None:
        for _ in range(2):
            signal.acquire()
            log.look_here(look)
        is_done.set()

    def make() -> None:
        # At 6 a look is due, at 7 the other thread is woken, and so on.
        while not is_done.wait(0.01):
            log.record_memory(Anchor(), None, 8, "kind", "cpu:0")

    threads = [threading.Thread(target=look_when_woken, name="woken"), threading.Thread(target=make)]
    log.look_at_births(look)
    log.wake_for_looks(signal.release)
    try:
        for thread in threads:
            thread.start()
        # In the method of a lock no other Python code runs on this thread.
        threads[1].join()
    finally:
        log.wake_for_looks(None)
        log.look_at_births(None)
        threads[0].join()
    by_others = [number for name, number in seen if name == "woken"]
    assert len(by_others) == 2
    assert by_others[0] >= 7
    log.look_here(look)
    assert len(seen) == len(by_others) + sum(name != "woken" for name, _ in seen)


def test_samples_estimate_what_there_is(log: Any) -> None:
    log.open(1, 10_000)
    kept = [Anchor() for _ in range(20_000)]
    for anchor in kept:
        log.record_memory(anchor, None, 100, "kind", "cpu:0")
    rows = [row for _, row in all_of(log.recorded_memory)]
    assert 100 < len(rows) < 400
    weight = sum(row.weight for row in rows)
    assert 0.6 < weight / 20_000 < 1.4, "some 200 samples: one standard deviation is 7 %"
    assert log.site(rows[0].site).live == pytest.approx(weight)
    assert log.site(rows[0].site).made == round(weight)
    del anchor
    kept.clear()
    assert log.site(rows[0].site).made == round(weight)


def test_many_births_and_deaths_in_any_order_leave_what_is_alive(log: Any) -> None:
    import random

    chance = random.Random(7)
    tensors = [ds.zeros(1) for _ in range(5000)]
    entries = [LIVE[id(tensor)] for tensor in tensors]
    for entry in entries:
        log.born(entry)
    alive = set(entries)
    for entry in chance.sample(entries, 4000):
        log.died(entry)
        alive.discard(entry)
    assert {entry for entry, _ in all_of(log.entries)} == alive
    assert len(all_of(log.entries)) == 1000


def test_a_closed_log_records_no_births_and_still_sees_deaths(log: Any) -> None:
    anchor = Anchor()
    log.record_memory(anchor, None, 1, "kind", "cpu:0")
    log.close()
    assert not log.record_memory(Anchor(), None, 1, "kind", "cpu:0")
    del anchor
    assert all_of(log.recorded_memory) == []


def test_clear_forgets_while_what_was_known_lives_on(log: Any) -> None:
    anchor = Anchor()
    log.record_memory(anchor, None, 1, "kind", "cpu:0")
    log.clear()
    assert (log.site_count(), log.counts()[3], log.live_nbytes()) == (0, 0, {})
    assert log.record_memory(anchor, None, 1, "kind", "cpu:0")
    assert len(all_of(log.recorded_memory)) == 1
    del anchor
    gc.collect()
    assert log.counts()[3] == 0


def test_births_on_many_threads_are_all_put_down(log: Any) -> None:
    kept: list[Anchor] = []

    def work() -> None:
        for _ in range(200):
            anchor = Anchor()
            log.record_memory(anchor, None, 1, "kind", "cpu:0")
            kept.append(anchor)

    threads = [threading.Thread(target=work, name=f"worker {index}") for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = [row for _, row in all_of(log.recorded_memory)]
    assert len(rows) == len(kept) == 1600
    assert len({row.number for row in rows}) == 1600


def test_the_place_of_a_call_is_the_users(log: Any) -> None:
    code, _ = log.place()
    assert code is sys._getframe().f_code


def test_memory_has_escaped_when_its_tensor_was_disposed_unless_it_was_let_out(log: Any) -> None:
    kept, moved, unknown = Anchor(), Anchor(), Anchor()
    log.record_memory(kept, None, 10, "kind", "cpu:0")
    log.record_memory(moved, None, 10, "kind", "cpu:0")
    assert not log.has_escaped(kept)
    log.let_out(moved)
    for anchor in (kept, moved, unknown):
        log.escape(anchor)
    log.let_out(unknown)
    assert [log.has_escaped(anchor) for anchor in (kept, moved, unknown)] == [True, False, False]


def test_a_block_is_asked_for_by_its_address(log: Any) -> None:
    log.escape(4096)
    assert not log.has_escaped(4096)


def test_what_is_known_of_a_birth_says_when_and_after_how_many_scopes(log: Any) -> None:
    first, second = Anchor(), Anchor()
    before = time.monotonic()
    log.record_memory(first, None, 10, "kind", "cpu:0")
    log.closing()
    log.record_memory(second, None, 20, "kind", "cpu:0")
    rows = [row for _, row in all_of(log.recorded_memory)]
    assert [(row.nbytes, row.number - rows[0].number, row.closings - rows[0].closings) for row in rows] == [
        (10, 0, 0),
        (20, 1, 1),
    ]
    assert all(before - 0.1 <= row.at_s <= time.monotonic() for row in rows)
    with pytest.raises(AttributeError):
        rows[0].nbytes = 1
    with pytest.raises(TypeError):
        type(rows[0])()


def test_what_is_asked_wrongly_is_refused(log: Any) -> None:
    for ask, error in (
        (lambda: log.is_in_use(1), TypeError),
        (lambda: log.record_memory(Anchor()), TypeError),
        (lambda: log.born(Anchor()), TypeError),
        (lambda: log.site(0), IndexError),
        (lambda: untrack(()), TypeError),
        (lambda: type(log)(), TypeError),
        (lambda: log.recall_block("0"), TypeError),
        (lambda: log.describe_kind("kind"), TypeError),
    ):
        with pytest.raises(error):
            ask()


def test_a_kind_that_is_described_again_leaves_nothing_of_what_it_was() -> None:
    def getters() -> int:
        return sum(type(thing) is attrgetter for thing in gc.get_objects())

    with LeakDetector():
        ds.zeros(1)
    before = getters()
    for _ in range(20):
        with LeakDetector():
            """Each describes the kinds that it watches."""
    assert getters() == before


def numbers_of_births(log: Any, results: list[Any], sizes: list[int]) -> tuple[int, int]:
    """Record births of some sizes at one line; return how many births and results it made."""
    for nbytes in sizes:
        results.append(Anchor())
        log.record_memory(results[-1], "add", nbytes, "numpy.ndarray", "cpu:0")
    return next(
        (row.births, row.made)
        for row in map(log.site, range(log.site_count()))
        if row.op == "add" and row.places[0][0] is numbers_of_births.__code__
    )


def test_scalars_on_the_way_to_larger_results_are_no_results(log: Any) -> None:
    results: list[Any] = []
    assert numbers_of_births(log, results, [8, 8, 4096]) == (3, 3)
    del results[:2]
    assert numbers_of_births(log, results, []) == (3, 1)
    assert numbers_of_births(log, results, [16, 4096, 17]) == (6, 4)
    results.clear()
    assert numbers_of_births(log, results, []) == (6, 3)


def made_on_one_line(log: Any, nbytes: list[int]) -> list[Anchor]:
    anchors = [Anchor() for _ in nbytes]
    for anchor, size in zip(anchors, nbytes, strict=True):
        log.record_memory(anchor, None, size, "kind", "cpu:0")
    return anchors


@pytest.mark.parametrize("temporaries", [0, 1, 2, 4])
@pytest.mark.parametrize("turns", [16, 40, 70, 1000])
def test_what_is_held_between_turns_is_counted_without_what_was_there_for_a_moment(
    log: Any, turns: int, temporaries: int
) -> None:
    held: list[Anchor] = []
    for _ in range(turns):
        *_, result = made_on_one_line(log, [8] * temporaries + [100])
        held.append(result)
    row = log.site(log.site_count() - 1)
    assert (row.held, row.held_nbytes) == (turns, 100 * turns)
    held.clear()
    for _ in range(50):
        made_on_one_line(log, [100] * 3)
    row = log.site(log.site_count() - 1)
    assert (row.held, row.held_nbytes) == (turns, 100 * turns), "what it held before it was freed"


def test_a_cache_that_is_full_holds_no_more_than_it_has_room_for(log: Any) -> None:
    cache: deque[Anchor] = deque(maxlen=30)
    for _ in range(200):
        cache.extend(made_on_one_line(log, [100]))
    row = log.site(log.site_count() - 1)
    assert (row.held, row.held_nbytes) == (30, 3000)


def test_a_list_that_is_begun_anew_held_what_it_had_before(log: Any) -> None:
    for length in (60, 100, 60):
        held: list[Anchor] = []
        for _ in range(length):
            held += made_on_one_line(log, [100])
    assert log.site(log.site_count() - 1).held == 100


def test_what_a_report_holds_is_not_what_a_line_holds(log: Any) -> None:
    held: list[Anchor] = []
    found: list[Anchor] = []
    for turn in range(40):
        if turn == 20:
            log.report_begins()
        held += made_on_one_line(log, [100])
        found += made_on_one_line(log, [100]) if turn >= 20 else []
    found.clear()
    log.report_ends()
    assert log.site(log.site_count() - 1).held <= 36


def test_scalars_are_results_where_nothing_larger_is_made(log: Any) -> None:
    results: list[Any] = []
    assert numbers_of_births(log, results, [8, 16]) == (2, 2)
    results.clear()
    assert numbers_of_births(log, results, []) == (2, 2)


def test_a_result_that_was_disposed_is_no_scalar() -> None:
    gc.collect()
    with LeakDetector():
        with ds.dispose_scope():
            tensor = ds.zeros(1000)
            number = LOG.site_count() - 1
        assert ds.is_disposed(tensor)
        assert LOG.site(number)[4:7] == (1, 1.0, 0)
        del tensor
        row = LOG.site(number)
        assert (row.births, row.live, row.made) == (1, 0.0, 1)
