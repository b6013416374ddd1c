"""Each kind of leak is recognised by its signs; without one a tensor is only alive."""

import gc
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided, sliding_window_view

import disposescope as ds
from disposescope.leaks import Leak, LeakDetector, Report
from disposescope.leaks.births.log import LOG
from disposescope.leaks.holders import search as _search
from tests.leaks.births import arrays_are_seen

BOX: dict[str, Any] = {}
BIG = 20_000


@pytest.fixture(autouse=True)
def _empty_box() -> Iterator[None]:
    yield
    BOX.clear()


def one(report: Report) -> Leak:
    [leak] = report.leaks
    return leak


def told(report: Report) -> list[tuple[str, str, int]]:
    return [(leak.kind, leak.sure, leak.count) for leak in report.leaks]


def test_what_a_variable_leads_to_is_alive_and_no_leak_of_a_program() -> None:
    with LeakDetector() as detector:
        BOX["weights"] = [ds.zeros(BIG)]
        block, program = (
            detector.report(object_limit=10**8),
            detector.report(of_program=True, object_limit=10**8),
        )
    assert told(block) == [("alive", "possible", 1)]
    assert (program.leaks, program.count, program.nbytes) == ((), 0, 0)
    [kept] = program.kept
    assert (kept.kind, kept.holder) == ("alive", f"module {__name__}.BOX['weights'][0]")
    assert [site.nbytes for site in program.sites] == [BIG * 8]


def test_a_history_that_grows_from_pass_to_pass_is_growth_within_50_passes() -> None:
    history = BOX["history"] = []
    with LeakDetector() as detector:
        for _ in range(50):
            with ds.dispose_scope("step") as step:
                noise = ds.zeros(100) + 1
                history.append(step.move_to_outer(ds.zeros(128)))
                del noise
        leak = one(detector.report(of_program=True, object_limit=10**8))
    assert (leak.kind, leak.sure, leak.count, leak.nbytes) == ("growth", "likely", 50, 50 * 1024)
    assert leak.trend is not None
    assert (leak.trend.count_per_pass, leak.trend.nbytes_per_pass) == (1.0, 1024.0)
    assert (leak.trend.passes, leak.trend.fit) == (50, 1.0)
    assert leak.holder.endswith(".BOX['history'][0]")


def test_marks_make_passes_too() -> None:
    history = BOX["history"] = []
    with LeakDetector() as detector:
        for _ in range(40):
            history.append(ds.zeros(128))
            detector.mark("epoch")
        leak = one(detector.report(of_program=True, object_limit=10**8))
    assert (leak.kind, leak.count) == ("growth", 40)


def test_a_loop_without_scopes_and_marks_is_reported_by_its_births() -> None:
    history = BOX["history"] = []
    with LeakDetector() as detector:
        for _ in range(30):
            total = ((ds.ones(1000) * 2) + 1) - 3
            history.append(total * 2)
        leak = one(detector.report(of_program=True, object_limit=10**8))
    assert (leak.kind, leak.sure, leak.count) == ("growth", "possible", 30)


def _train(detector: LeakDetector, steps: int = 20) -> None:
    for _ in range(steps):
        ds.zeros(1000) * 2
        detector.mark("step")


def test_what_a_service_keeps_after_passes_is_reported_by_its_births() -> None:
    answers = BOX["answers"] = []
    with LeakDetector() as detector:
        _train(detector)
        for number in range(100):
            answers.append(ds.zeros(1000) + number)
            if number == 10:
                assert not detector.report(of_program=True, object_limit=10**8).leaks, "too few to tell"
        leak = one(detector.report(of_program=True, object_limit=10**8))
    assert (leak.kind, leak.sure, leak.count) == ("growth", "possible", 100)
    assert leak.trend is not None
    assert leak.trend.over == "births"
    assert leak.holder.endswith(".BOX['answers'][0]")


@arrays_are_seen
def test_a_report_makes_no_memory_that_is_recorded() -> None:
    BOX["tables"] = [np.array([["a", None], ["b", BOX]], dtype=object) for _ in range(3)]
    with LeakDetector() as detector:
        BOX["result"] = np.ones(BIG)
        before, *_ = LOG.counts()
        detector.report(of_program=True, object_limit=10**8)
        detector.report(of_program=True, object_limit=10**8)
        assert LOG.counts()[0] == before > 0


def test_bounded_answers_of_a_service_and_the_last_of_several_evaluations_are_no_growth() -> None:
    answers = BOX["answers"] = deque[ds.Tensor](maxlen=40)
    with LeakDetector() as detector:
        _train(detector)
        for number in range(200):
            answers.append(ds.zeros(1000) + number)
        report = detector.report(of_program=True, object_limit=10**8)
        assert (report.leaks, [leak.unjudged for leak in report.kept]) == ((), [None])
        answers.clear()
        for _ in range(3):
            _train(detector)
            outputs = BOX["outputs"] = []
            for number in range(100):
                outputs.append(ds.zeros(1000) + number)
        report = detector.report(of_program=True, object_limit=10**8)
        assert (report.leaks, [leak.unjudged for leak in report.kept]) == ((), [None])


def test_a_snapshot_is_judged_by_what_was_born_before_it_was_taken() -> None:
    with LeakDetector() as detector:
        history = BOX["history"] = [ds.zeros(1000)]
        for _ in range(200):
            history.append(history[-1] + 1)
        snapshot = detector.take_snapshot()
        # As other threads do while a report is being made.
        for _ in range(1000):
            ds.zeros(3)
        [leak] = snapshot.report(of_program=True).leaks
    assert (leak.kind, leak.sure, leak.count) == ("growth", "possible", 200)


@pytest.mark.parametrize("wanted", [1, 8, 20])
def test_a_cache_that_is_bounded_is_no_growth(wanted: int) -> None:
    cache = BOX["cache"] = {}
    with LeakDetector() as detector:
        for number in range(60):
            with ds.dispose_scope("step") as step:
                cache[number % wanted] = step.move_to_outer(ds.zeros(128))
        assert [
            leak.kind for leak in detector.report(of_program=True, object_limit=10**8).leaks if leak.kind == "growth"
        ] == []


def test_a_list_of_numbers_is_no_growth_that_is_worth_a_word() -> None:
    losses = BOX["losses"] = []
    with LeakDetector() as detector:
        for _ in range(50):
            with ds.dispose_scope("step") as step:
                losses.append(step.move_to_outer(ds.ones(1000).sum()))
        report = detector.report(of_program=True, object_limit=10**8)
    assert report.leaks == ()
    assert [leak.count for leak in report.kept] == [50]


def test_samples_that_were_made_before_the_loop_are_no_growth() -> None:
    with LeakDetector() as detector:
        BOX["samples"] = [ds.zeros(1000) for _ in range(50)]
        for sample in BOX["samples"]:
            with ds.dispose_scope("step"):
                (sample * 2).sum()
        assert detector.report(of_program=True, object_limit=10**8).leaks == ()


@pytest.mark.parametrize("has_scope", [True, False])
def test_a_small_view_that_pins_much_is_a_view(*, has_scope: bool) -> None:
    with LeakDetector() as detector, ds.dispose_scope("preview") if has_scope else nullcontext():
        BOX["preview"] = ds.zeros(12_500_000)[:5]
        leak = one(detector.report(of_program=True, object_limit=10**8))
    assert (leak.kind, leak.sure, leak.nbytes, leak.used_nbytes) == ("view", "likely", 100_000_000, 40)
    # Without a scope move_to_outer() raises.
    assert ("compact=True" in leak.explanation) == has_scope


@arrays_are_seen
@pytest.mark.parametrize("windows", [as_strided, sliding_window_view], ids=["strided", "windows"])
def test_a_part_of_an_array_behind_a_strided_view_is_a_view(windows: Callable[..., Any]) -> None:
    shape = {"shape": (10, 100), "strides": (800, 8)} if windows is as_strided else {"window_shape": 100}
    with LeakDetector() as detector:
        BOX["parts"] = [windows(np.ones(BIG), **shape)[0] for _ in range(3)]
        leak = one(detector.report(of_program=True, object_limit=10**8))
    assert (leak.kind, leak.sure, leak.count) == ("view", "likely", 3)
    assert (leak.nbytes, leak.used_nbytes) == (3 * BIG * 8, 3 * 800)


def test_the_last_view_of_a_loop_is_no_leak_and_two_of_them_are() -> None:
    with LeakDetector() as detector:
        for _ in range(10):
            BOX["preview"] = ds.zeros(100_000)[:5]
        assert told(detector.report(of_program=True, object_limit=10**8)) == []
        for number in range(10):
            BOX[f"preview {number % 2}"] = ds.zeros(100_000)[:5]
        leak = one(detector.report(of_program=True, object_limit=10**8))
    assert (leak.kind, leak.sure, leak.count) == ("view", "likely", 2)


def test_a_view_is_reported_also_after_a_long_search_of_the_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disposescope.leaks.holders.search._EXTRA_OBJECTS", 0)
    with ds.LeakDetector() as detector:
        BOX["preview"] = ds.zeros(12_500_000)[:5]
        [leak] = detector.report().leaks
    assert leak.kind == "view"


def test_views_are_no_leak_where_the_whole_is_used() -> None:
    with LeakDetector() as detector:
        BOX["whole"] = whole = ds.zeros(BIG)
        BOX["head"] = whole[:5]
        BOX["parts"] = [part for start in (0, BIG // 2) for part in [ds.ones(BIG)] for part in [part[start:]]]
        del whole
        report = detector.report(of_program=True, object_limit=10**8)
    assert [leak.kind for leak in report.leaks] == []


def test_what_only_a_kept_exception_holds_is_reported_with_its_frame() -> None:
    def fail() -> None:
        batch = ds.zeros(BIG)
        raise ValueError(len(batch))

    with LeakDetector() as detector:
        try:
            fail()
        except ValueError as error:
            BOX["errors"] = [error]
            handled = detector.report(of_program=True, object_limit=10**8)
        leak = one(detector.report(of_program=True, object_limit=10**8))
        BOX["also"] = [*gc.get_referents(BOX["errors"][0].__traceback__.tb_next.tb_frame)] and None
    assert handled.leaks == one_kind(handled, "exception")
    assert (leak.kind, leak.sure, leak.count) == ("exception", "likely", 1)
    assert ".__traceback__ frame " in leak.holder
    assert leak.holder.endswith("fail(): local 'batch'")


def one_kind(report: Report, kind: str) -> tuple[Leak, ...]:
    return tuple(leak for leak in report.leaks if leak.kind == kind)


def test_an_exception_that_is_being_handled_is_no_leak_of_a_program() -> None:
    def fail() -> None:
        batch = ds.zeros(BIG)
        raise ValueError(len(batch))

    with LeakDetector() as detector:
        try:
            fail()
        except ValueError:
            report = detector.report(of_program=True, object_limit=10**8)
    assert report.leaks == ()
    assert [(leak.kind, leak.sure) for leak in report.kept] == [("exception", "possible")]


@pytest.mark.unmeasured
def test_a_cycle_is_reported_with_its_members() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.batch = ds.zeros(BIG)
            self.on_step = self.step

        def step(self) -> None: ...

    thresholds = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with LeakDetector() as detector:
            Trainer()
            once = detector.report(of_program=True, object_limit=10**8)
            Trainer()
            leak = one(detector.report(of_program=True, object_limit=10**8))
    finally:
        gc.set_threshold(*thresholds)
    name = Trainer.__qualname__
    assert (leak.kind, leak.sure, leak.members) == ("cycle", "certain", (f"{name}.on_step.__self__ -> {name}",))
    assert leak.count == 2
    # One may have been in use until the function returned that made it.
    assert once.leaks == ()
    assert [row.kind for row in once.kept] == ["cycle"]
    gc.collect()


@pytest.mark.unmeasured
@pytest.mark.long
def test_many_tensors_in_one_cycle_are_not_done_again_and_again() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.batches = [ds.zeros(BIG) for _ in range(20)]
            self.myself = self

    thresholds = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with LeakDetector() as detector:
            Trainer()
            once = detector.report(of_program=True, object_limit=10**8)
            gc.disable()
            [never_freed] = detector.report(of_program=True, object_limit=10**8).leaks
            gc.enable()
            for _ in range(2):
                Trainer()
            leak = one(detector.report(of_program=True, object_limit=10**8))
    finally:
        gc.enable()
        gc.set_threshold(*thresholds)
    assert once.leaks == ()
    assert (never_freed.kind, never_freed.count) == ("cycle", 20)
    assert [(row.kind, row.count) for row in once.kept] == [("cycle", 20)]
    assert (leak.kind, leak.count) == ("cycle", 60)
    gc.collect()


def test_what_only_a_suspended_generator_holds_is_reported_as_suspended() -> None:
    def batches() -> Iterator[int]:
        batch = ds.zeros(3)
        yield 1
        del batch

    with LeakDetector() as detector:
        BOX["batches"] = generator = batches()
        next(generator)
        leak = one(detector.report(object_limit=10**8))
        assert detector.report(of_program=True, object_limit=10**8).leaks == ()
    assert (leak.kind, leak.sure) == ("suspended", "possible")
    generator.close()


def test_a_disposed_tensor_in_a_history_escaped() -> None:
    with LeakDetector() as detector:
        for _ in range(2):
            with ds.dispose_scope():
                BOX.setdefault("history", []).append(ds.zeros(3))
        leak = one(detector.report(of_program=True, object_limit=10**8))
    assert (leak.kind, leak.sure, leak.state, leak.nbytes) == ("escaped", "certain", "disposed", 0)


def test_a_fingerprint_outlives_edits() -> None:
    def made(count: int) -> Leak:
        with LeakDetector() as detector:
            BOX["x"] = [make() for _ in range(count)]
            return one(detector.report(object_limit=10**8))

    def make() -> ds.Tensor:
        return ds.zeros(3)

    first, second = made(1), made(2)
    assert (first.fingerprint, first.count, second.count) == (second.fingerprint, 1, 2)
    assert len(first.fingerprint) == 40
    with LeakDetector() as detector:
        BOX["x"] = ds.ones(3)
        assert one(detector.report(object_limit=10**8)).fingerprint != first.fingerprint


def test_a_report_keeps_no_array_alive() -> None:
    with LeakDetector() as detector:
        array = np.zeros(BIG)
        BOX["tensor"] = ds.asarray(array)
        watch = weakref.ref(array)
        report = detector.report(object_limit=10**8)
    del array
    BOX.clear()
    assert watch() is None
    assert report.leaks


class _Node:
    def __init__(self, size: int) -> None:
        self.me = self
        self.values = np.ones(size)


def cycles_of(size: int, count: int) -> Report:
    gc.collect()
    gc.disable()
    try:
        with LeakDetector() as detector:
            for _ in range(count):
                _Node(size)
            return detector.report(of_program=True, object_limit=10**8)
    finally:
        gc.enable()
        gc.collect()


@pytest.mark.long
@arrays_are_seen
def test_plain_arrays_in_a_cycle_that_nothing_reaches_are_reported_with_the_cycle() -> None:
    leak = one(cycles_of(BIG, 2))
    assert (leak.kind, leak.count, leak.nbytes) == ("cycle", 2, 16 * BIG)
    assert leak.members == (f"{_Node.__qualname__}.me -> {_Node.__qualname__}",)


@pytest.mark.long
@arrays_are_seen
def test_a_little_in_a_cycle_is_no_leak_of_a_program() -> None:
    report = cycles_of(10, 1)
    assert report.leaks == ()
    assert [leak.kind for leak in report.kept] == ["cycle"]


@pytest.mark.unmeasured
@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "freed", "is_leak"), [(10, 0, False), (BIG, 11, False), (BIG, 9, True)], ids=["small", "most freed", "few"]
)
def test_cycles_are_a_leak_of_a_program_if_they_are_large_and_most_have_not_been_freed(
    size: int, freed: int, is_leak: bool
) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.batch = ds.zeros(size)
            self.myself = self

    thresholds = gc.get_threshold()
    gc.collect()
    gc.set_threshold(0)
    try:
        with LeakDetector() as detector:
            for number in range(20):
                if number == freed:
                    gc.collect()
                Trainer()
            report = detector.report(of_program=True, object_limit=10**8)
    finally:
        gc.set_threshold(*thresholds)
        gc.collect()
    rows = [(row.kind, row.count) for row in (report.leaks if is_leak else report.kept)]
    assert (rows, bool(report.leaks)) == ([("cycle", 20 - freed)], is_leak)


def test_a_bounded_cache_is_no_leak_where_there_were_passes_enough_to_tell() -> None:
    with LeakDetector() as detector:
        for step in range(30):
            BOX[f"slot {step % 4}"] = np.full(BIG, step)
            with ds.dispose_scope("step"):
                pass
        assert told(detector.report(of_program=True, object_limit=10**8)) == []


def test_a_pinned_view_is_reported_also_after_a_long_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_search, "_EXTRA_OBJECTS", 0)
    with LeakDetector() as detector:
        BOX["preview"] = ds.zeros(100_000)[:5]
        leak = one(detector.report(of_program=True, object_limit=10**8))
    assert (leak.kind, leak.used_nbytes) == ("view", 40)


def test_a_walk_that_goes_on_for_long_ends_where_nothing_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_search, "_EXTRA_OBJECTS", 0)
    with LeakDetector() as detector:
        BOX["all"] = ds.zeros(100_000)
        [kept] = detector.report(of_program=True, object_limit=10**8).kept
    assert (kept.kind, kept.used_nbytes) == ("alive", 800_000)


def test_what_stays_once_of_a_line_that_something_else_collects_does_not_grow() -> None:
    def gather() -> Generator[None, ds.Tensor, None]:
        collected: list[ds.Tensor] = []
        while True:
            collected.append((yield))

    with LeakDetector() as detector:
        BOX["gather"] = gathering = gather()
        next(gathering)
        for step in range(40):
            made = ds.zeros(1000)
            if step:
                gathering.send(made)
            else:
                BOX["first"] = made
            detector.mark("step")
        del made
        report = detector.report(of_program=True, object_limit=10**8)
    assert [(leak.kind, leak.count) for leak in report.leaks] == [("growth", 39)]
    del BOX["gather"]
    gathering.close()


def test_the_sums_of_a_sampled_report_are_those_of_its_rows() -> None:
    # A third is kept: so many that whether the line grows does not hang on which.
    with LeakDetector(sample_nbytes=20_000) as detector:
        for _ in range(2000):
            with ds.dispose_scope() as scope:
                BOX.setdefault("history", []).append(scope.move_to_outer(ds.zeros(1000)))
        report = detector.report(of_program=True, object_limit=10**8)
    [leak] = report.leaks
    assert leak.count != len(leak.records)
    assert (report.count, report.nbytes) == (leak.count, leak.nbytes)
    assert 8_000_000 < report.nbytes < 32_000_000
    [row] = report.sites
    assert (row.count, row.nbytes) == (leak.count, leak.nbytes)


def test_no_more_is_alive_than_a_line_has_made_where_births_are_sampled() -> None:
    def history(*, is_halved: bool) -> Leak:
        kept = BOX["history"] = []
        for index in range(4000):
            kept.append(np.zeros(1000))
            if is_halved and index % 2:
                del kept[-1]
        return one(detector.report(of_program=True, object_limit=10**8))

    with LeakDetector(sample_nbytes=20_000) as detector:
        whole = history(is_halved=False)
    assert whole.trend is not None
    assert (whole.trend.over, whole.trend.passes) == ("births", whole.count)
    assert whole.trend.series[-1][1:] == (whole.count, whole.nbytes)
    BOX.clear()
    with LeakDetector(sample_nbytes=20_000) as detector:
        half = history(is_halved=True)
    assert half.trend is not None
    assert 1.5 * half.count < half.trend.passes < 2.5 * half.count
