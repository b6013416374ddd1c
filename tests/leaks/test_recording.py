"""Samples, passes and scopes of a run are bounded; there is no thread unless asked for."""

import gc
import itertools
import mmap
import os
import sys
import threading

import pytest

import disposescope as ds
from disposescope.leaks import LeakDetector
from disposescope.leaks.detector import own_pages, recording
from disposescope.leaks.detector.collection import collection_paused
from disposescope.leaks.detector.own_pages import OwnPages, own_nbytes
from disposescope.leaks.detector.recording import Thinned
from disposescope.leaks.report.timeline import AT_MOST, HANDED_OVER


def test_samples_passes_and_scopes_are_recorded() -> None:
    kept = []
    with LeakDetector(timeline_s=60) as detector:
        for _ in range(3):
            with ds.dispose_scope("epoch"):
                with ds.dispose_scope("step") as step:
                    kept.append(step.move_to_outer(ds.zeros(1000)))
        detector.mark("done")
    timeline = detector.report().timeline
    first, *_, last = timeline.samples
    assert first.t_s < last.t_s
    assert last.rss_nbytes > 1_000_000
    if sys.platform == "linux":
        assert last.anonymous_nbytes is not None
        assert last.anonymous_nbytes > 1_000_000
    assert [(one.name, one.index) for one in timeline.passes] == [
        *((name, index) for index in (1, 2, 3) for name in ("step", "epoch")),
        ("done", 1),
    ]
    assert [(band.name, band.depth) for band in timeline.bands] == [("epoch", 0), ("step", 1)] * 3
    assert all(band.to_s is not None and band.from_s <= band.to_s for band in timeline.bands)
    assert {band.thread for band in timeline.bands} == {threading.current_thread().name}


@pytest.mark.timeout(60)
def test_a_finalizer_may_open_a_scope_while_one_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """So may a handler of a signal: both run on the thread that is recording."""
    inner = iter(range(2))
    now_s = recording._now_s

    def now() -> float:
        for _ in inner:
            with ds.dispose_scope("of a finalizer"):
                break
        return now_s()

    with LeakDetector(timeline_s=60) as detector:
        monkeypatch.setattr(recording, "_now_s", now)
        with ds.dispose_scope("step"):
            pass
        monkeypatch.undo()
        names = [band.name for band in detector.timeline().bands]
    assert sorted(names) == ["of a finalizer", "of a finalizer", "step"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_child_that_is_forked_while_a_thread_records_has_a_lock_of_its_own() -> None:
    with LeakDetector(timeline_s=60):
        [recorder] = recording.RECORDERS
        is_held, may_go = threading.Event(), threading.Event()

        def hold() -> None:
            with recorder._lock:
                is_held.set()
                may_go.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        is_held.wait()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if recorder._lock.acquire(timeout=5) else 1)
        may_go.set()
        thread.join()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_finalizer_may_make_a_report_while_the_collector_is_being_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    threshold, get_threshold = gc.get_threshold(), gc.get_threshold
    inner = iter(range(1))

    def interrupted() -> tuple[int, int, int]:
        for _ in inner:
            with collection_paused():
                pass
        return get_threshold()

    monkeypatch.setattr(gc, "get_threshold", interrupted)
    with collection_paused():
        assert get_threshold()[0] == 0
    assert get_threshold() == threshold


def test_a_scope_that_is_open_has_no_end_yet() -> None:
    with LeakDetector(timeline_s=60) as detector:
        with ds.dispose_scope("epoch"):
            [band] = detector.timeline().bands
        assert (band.name, band.to_s) == ("epoch", None)
        assert detector.timeline().bands[0].to_s is not None


def test_live_bytes_are_those_of_the_moment() -> None:
    gc.collect()
    with LeakDetector(timeline_s=60) as detector:
        before = detector.timeline().samples[-1].live_nbytes.get("cpu:0", 0)
        kept = ds.zeros(1_000_000)
        after = detector.timeline().samples[-1].live_nbytes["cpu:0"]
        assert after - before == kept.nbytes == 8_000_000


def test_live_bytes_count_the_tensor_that_was_made_last() -> None:
    torch = pytest.importorskip("torch")
    with LeakDetector(timeline_s=60) as detector:
        before = detector.timeline().samples[-1].live_nbytes.get("cpu:0", 0)
        kept = torch.zeros(1_000_000)
        after = detector.timeline().samples[-1].live_nbytes["cpu:0"]
        assert after - before == kept.nbytes == 4_000_000


def test_live_bytes_count_those_of_a_kind_of_the_users() -> None:
    class Table:
        pass

    ds.register_kind(Table, release=lambda table: None, nbytes=lambda table: 1000, weak=True)
    with LeakDetector(timeline_s=60) as detector, ds.dispose_scope() as scope:
        before = detector.timeline().samples[-1].live_nbytes.get("cpu:0", 0)
        scope.attach(Table())
        kept = scope.attach(Table())
        assert detector.timeline().samples[-1].live_nbytes["cpu:0"] - before == 1000
        assert kept in scope


def test_without_being_asked_for_there_is_no_thread_and_no_time_line() -> None:
    threads = len(sys._current_frames())
    with LeakDetector() as detector:
        assert len(sys._current_frames()) == threads
    assert detector.timeline().samples == ()
    with LeakDetector(timeline_s=60):
        assert len(sys._current_frames()) == threads + 1
    assert len(sys._current_frames()) == threads


def test_a_list_is_thinned_evenly() -> None:
    numbers: Thinned[int] = Thinned()
    for number in range(100_000):
        if numbers.wants():
            numbers.append(number)
    kept = numbers.items()
    steps = {after - before for before, after in itertools.pairwise(kept)}
    assert AT_MOST // 2 <= len(kept) <= AT_MOST
    assert len(steps) == 1
    assert kept[0] < 200
    assert kept[-1] > 99_800


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frames": 0}, "frames must be at least 1, not 0"),
        ({"sample_nbytes": 0}, "sample_nbytes must be at least 1, or None for every birth, not 0"),
        ({"timeline_s": 0}, "timeline_s must be more than 0, or None for no time line, not 0"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LeakDetector(**options)


def test_a_report_has_the_births_and_the_peak_of_a_line() -> None:
    with LeakDetector(frames=3) as detector:
        for _ in range(4):
            kept = ds.zeros(100)
        report = detector.report()
    [site] = [site for site in report.sites if site.kind == "Tensor"]
    assert (site.count, site.nbytes, site.births, site.peak_nbytes) == (1, 800, 4, 1600)
    assert report.settings.frames == 3
    assert 2 <= len(site.frames) <= 3
    assert kept.shape == (100,)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process has for itself")
def test_memory_that_is_written_is_a_processs_own() -> None:
    before = own_nbytes()
    # New pages: the C library may have others, which were written before.
    block = mmap.mmap(-1, 20_000_000)
    block.write(b"1" * 20_000_000)
    after = own_nbytes()
    assert before is not None
    assert after is not None
    assert after - before > 15_000_000
    assert len(block) == 20_000_000


def test_own_pages_are_read_at_few_passes_and_what_a_system_does_not_report_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[int] = []
    monkeypatch.setattr(own_pages, "own_nbytes", lambda: reads.append(1) or 10_000_000)
    pages = OwnPages()
    for number in range(1, 5001):
        pages.passed("step", number)
        pages.passed(HANDED_OVER, number)
    assert 100 < len(reads) < 400
    assert (pages.leaks(), pages.unwatched()) == ((), ())
    monkeypatch.setattr(own_pages, "own_nbytes", lambda: None)
    pages = OwnPages()
    for number in range(1, 100):
        pages.passed(HANDED_OVER, number)
    assert pages.leaks() == ()
    [said] = pages.unwatched()
    assert "this system does not report it" in said


def test_copies_that_a_worker_makes_in_its_first_passes_are_told_from_one_collection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A loader that shuffles: a pass reads one page in four, and copies it at first.
    number = 0
    monkeypatch.setattr(own_pages, "own_nbytes", lambda: round(86_000_000 * (1 - (3 / 4) ** number)))
    monkeypatch.setattr(own_pages, "anonymous_nbytes", lambda: 200_000_000)
    pages = OwnPages()
    for number in range(1, 301):
        pages.passed(HANDED_OVER, number)
    [leak] = pages.leaks()
    assert (leak.kind, leak.nbytes > 60_000_000) == ("native", True)


def test_passes_are_sampled_ever_more_rarely_however_fast_they_are() -> None:
    with LeakDetector(timeline_s=3600) as detector:
        counts = []
        for _ in range(4):
            for _ in range(200):
                detector.mark("step")
            counts.append(len(detector.report().timeline.samples))
    # As many as are needed to see that native memory grows; one more is of each report.
    assert counts[0] > 50
    assert [after - before < 20 for before, after in itertools.pairwise(counts)] == [True] * 3
