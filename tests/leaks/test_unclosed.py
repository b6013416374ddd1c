"""Scopes that are never closed, generators suspended in one, and memory that grows natively."""

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest

import disposescope as ds
from disposescope.leaks import LeakDetector, Report, Sample
from disposescope.leaks.report.leaks import Trend
from disposescope.leaks.report.timeline import Pass, Timeline
from disposescope.leaks.verdicts.without_tensors import (
    OwnMemory,
    growth_of_own_memory,
    native_growth,
    native_trend,
)
from disposescope.scopes.base.process import bytes_text

BOX: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _empty_box() -> Iterator[None]:
    yield
    BOX.clear()


def open_scope(name: str) -> ds.DisposeScope:
    scope = ds.dispose_scope(name)
    scope.__enter__()
    return scope


def unclosed(report: Report) -> list[tuple[str, str, str]]:
    return [(leak.kind, leak.sure, leak.explanation) for leak in report.leaks if leak.tensor is None]


def test_a_scope_that_was_entered_and_not_closed_is_reported_with_its_line() -> None:
    with LeakDetector() as detector:
        scope = open_scope("forgotten")
        BOX["batch"] = ds.zeros(10)
        report = detector.report()
        scope.__exit__(None, None, None)
        assert unclosed(detector.report()) == []
    [leak] = [leak for leak in report.leaks if leak.kind == "scope"]
    assert (leak.sure, leak.count, leak.nbytes, leak.scopes) == ("certain", 1, 80, ("forgotten",))
    assert leak.site is not None
    assert leak.site.function == "open_scope"
    assert leak.site.line == open_scope.__code__.co_firstlineno + 2
    assert "use a with statement" in leak.explanation


def test_a_scope_whose_block_runs_is_no_leak() -> None:
    @contextmanager
    def mine() -> Iterator[None]:
        with ds.dispose_scope("managed"):
            yield

    def work() -> None:
        with ds.dispose_scope("on a thread"):
            ready.set()
            done.wait()

    ready, done = threading.Event(), threading.Event()
    with LeakDetector() as detector:
        thread = threading.Thread(target=work)
        thread.start()
        ready.wait()
        with ds.dispose_scope("plain"), mine(), ExitStack() as stack:
            stack.enter_context(ds.dispose_scope("stacked"))
            for _ in ds.scoped_batches([1, 2]):
                assert unclosed(detector.report()) == []
        done.set()
        thread.join()


def test_a_generator_that_stays_suspended_in_a_scope_is_reported_at_the_end_of_a_program() -> None:
    def batches() -> Iterator[int]:
        with ds.dispose_scope("batch"):
            yield 1

    with LeakDetector() as detector:
        BOX["batches"] = generator = batches()
        next(generator)
        running, over = detector.report(), detector.report(of_program=True)
        generator.close()
    assert unclosed(running) == []
    [(kind, sure, text)] = unclosed(over)
    assert (kind, sure) == ("suspended", "likely")
    line = batches.__code__.co_firstlineno + 2
    assert f"The scope 'batch' is open in the generator {batches.__qualname__}()" in text
    assert f"suspended at line {line}" in text


def native(series: tuple[Sample, ...], each: int = 2) -> Trend | None:
    """The native trend of samples, of which so many are taken in a pass."""
    ends = range(0, len(series) + each, each)
    return native_trend(series, [Pass(end + 0.5, index, "step") for index, end in enumerate(ends, 1)])


def test_native_growth_is_told_by_anonymous_memory_over_the_passes_of_the_program() -> None:
    grows = [200_000_000 + index * 1_000_000 for index in range(60)]
    flat = [200_000_000] * 60
    swapped = tuple(replace(row, anonymous_nbytes=own) for row, own in zip(samples(flat), grows, strict=True))
    trend = native(swapped)
    assert trend is not None, "resident memory does not grow where the system swaps"
    assert (trend.passes, trend.nbytes_per_pass) == (30, pytest.approx(2_000_000))
    mapped = tuple(replace(row, anonymous_nbytes=own) for row, own in zip(samples(grows), flat, strict=True))
    assert native(mapped) is None, "pages of files are no growth"
    passes = tuple(Pass(float(2 * index), index, "step") for index in range(31))
    [told] = native_growth(Timeline(swapped, passes))
    assert "anonymous memory of the process, swap included" in told.explanation
    [told] = native_growth(Timeline(samples(grows), passes))
    assert "this system does not report anonymous memory" in told.explanation


def test_native_memory_that_grows_less_than_that_of_tensors_is_no_native_growth() -> None:
    # As where models become larger: the buffers of native code, and gaps, become larger too.
    def with_tensors(nbytes_a_sample: int) -> tuple[Sample, ...]:
        tensors = [index * nbytes_a_sample if index % 2 else 0 for index in range(60)]
        grows = [200_000_000 + index * 1_000_000 for index in range(60)]
        rows = samples([own + known for own, known in zip(grows, tensors, strict=True)])
        return tuple(replace(row, cached_nbytes=known) for row, known in zip(rows, tensors, strict=True))

    assert native(with_tensors(500_000)) is not None
    assert native(with_tensors(2_000_000)) is None


def test_the_text_of_native_growth_has_its_bytes_and_no_tensors() -> None:
    passes = tuple(Pass(float(2 * index), index, "step") for index in range(31))
    [told] = native_growth(Timeline(samples([200_000_000 + index * 1_000_000 for index in range(60)]), passes))
    with LeakDetector() as detector:
        report = detector.report()
    text = str(replace(report, leaks=(told,), count=1))
    assert text.startswith(f"1 suspect, {bytes_text(told.nbytes)}\n")
    assert "grows by 2.0 MB per pass, over 31 passes" in text
    assert "0 bytes" not in text


def samples(rss: list[int], live: list[int] | None = None, cached: list[int] | None = None) -> tuple[Sample, ...]:
    nothing = [0] * len(rss)
    return tuple(
        Sample(float(index), row[0], {"cpu:0": row[1]}, row[2])
        for index, row in enumerate(zip(rss, live or nothing, cached or nothing, strict=True))
    )


def test_resident_memory_that_grows_alone_is_native_growth() -> None:
    steady = [200_000_000 + index * 1_000_000 for index in range(60)]
    trend = native(samples(steady))
    assert trend is not None
    assert trend.nbytes_per_pass == pytest.approx(2_000_000)
    grown = [nbytes - 200_000_000 for nbytes in steady]
    assert native(samples(steady, live=grown)) is None, "tracked tensors explain it"
    assert native(samples(steady, cached=grown)) is None, "caches and fragmentation explain it"
    assert native(samples([min(nbytes, 215_000_000) for nbytes in steady])) is None, "it has come to rest"
    assert native(samples(steady[:20])) is None, "too short"
    small = [200_000_000 + index * 10_000 for index in range(60)]
    assert native(samples(small)) is None, "too little"
    chance = random.Random(7)
    assert native(samples([200_000_000 + chance.randrange(60_000_000) for _ in range(60)])) is None


def own_memory(own: Sequence[int], anonymous: Sequence[int] | None = None) -> list[OwnMemory]:
    anonymous = [0] * len(own) if anonymous is None else anonymous
    return [
        OwnMemory(4 * number, 50_000_000 + nbytes, 3_000_000, 200_000_000 + of_all)
        for number, (nbytes, of_all) in enumerate(zip(own, anonymous, strict=True), 1)
    ]


def test_pages_that_a_worker_copies_from_pass_to_pass_are_native_growth() -> None:
    steady = [number * 1_000_000 for number in range(40)]
    [copied] = growth_of_own_memory(own_memory(steady))
    assert (copied.kind, copied.sure, copied.nbytes) == ("native", "possible", 39_000_000)
    assert "copies the memory of its parent" in copied.explanation
    assert copied.trend is not None
    assert round(copied.trend.nbytes_per_pass) == 250_000
    [allocated] = growth_of_own_memory(own_memory(steady, steady))
    assert "tracemalloc" in allocated.remedy


def test_pages_that_a_worker_copies_at_random_are_told_although_ever_fewer_are_left() -> None:
    [copied] = growth_of_own_memory(own_memory([round(40_000_000 * (1 - 0.7**number)) for number in range(40)]))
    assert (copied.kind, copied.sure, copied.nbytes, copied.trend) == ("native", "possible", 39_999_964, None)
    assert "copies the memory of its parent page by page, 40.0 MB until now" in copied.explanation


def test_pages_that_a_worker_copies_once_are_no_growth() -> None:
    steady = [number * 1_000_000 for number in range(40)]
    assert growth_of_own_memory(own_memory([0, *[60_000_000] * 39])) == ()
    assert (
        growth_of_own_memory(own_memory([0, 30_000_000, 32_000_000, *[60_000_000 + n * 50_000 for n in range(40)]]))
        == ()
    )
    rests = [min(nbytes, 20_000_000) for nbytes in steady]
    assert growth_of_own_memory(own_memory(rests, rests)) == (), "its own, and it has come to rest"
    assert growth_of_own_memory(own_memory([nbytes // 10 for nbytes in steady])) == ()
    assert growth_of_own_memory(own_memory(steady[:10])) == ()
    assert growth_of_own_memory([]) == ()
    known = [replace(point, known_nbytes=point.own_nbytes) for point in own_memory(steady)]
    assert growth_of_own_memory(known) == ()
