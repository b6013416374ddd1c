"""The course of a run: samples, passes and scopes, bounded; no thread where nobody asked for it."""

import gc
import itertools
import threading

import pytest

import disposescope as ds
from disposescope.leaks import LeakDetector
from disposescope.leaks.detector.recording import Thinned
from disposescope.leaks.report.timeline import AT_MOST


def test_samples_passes_and_scopes_are_recorded() -> None:
    kept = []
    with LeakDetector(timeline_s=60) as detector:
        for _ in range(3):
            with ds.dispose_scope("epoch"):
                with ds.dispose_scope("step") as step:
                    kept.append(step.move_to_outer(ds.zeros(1000)))
        detector.mark("done")
    timeline = detector.report().timeline
    first, last = timeline.samples
    assert first.t_s < last.t_s
    assert last.rss_nbytes > 1_000_000
    assert [(one.name, one.index) for one in timeline.passes] == [
        *((name, index) for index in (1, 2, 3) for name in ("step", "epoch")),
        ("done", 1),
    ]
    assert [(band.name, band.depth) for band in timeline.bands] == [("epoch", 0), ("step", 1)] * 3
    assert all(band.to_s is not None and band.from_s <= band.to_s for band in timeline.bands)
    assert {band.thread for band in timeline.bands} == {threading.current_thread().name}


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


def test_without_being_asked_for_there_is_no_thread_and_no_time_line() -> None:
    threads = threading.active_count()
    with LeakDetector() as detector:
        assert threading.active_count() == threads
    assert detector.timeline().samples == ()
    with LeakDetector(timeline_s=60):
        assert threading.active_count() == threads + 1
    assert threading.active_count() == threads


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


def test_a_report_tells_births_and_the_peak_of_a_line() -> None:
    with LeakDetector(frames=3) as detector:
        for _ in range(4):
            kept = ds.zeros(100)
        report = detector.report()
    [site] = [site for site in report.sites if site.kind == "Tensor"]
    assert (site.count, site.nbytes, site.births, site.peak_nbytes) == (1, 800, 4, 1600)
    assert report.settings.frames == 3
    assert 2 <= len(site.frames) <= 3
    assert kept.shape == (100,)
