"""Scopes that nobody closes, generators that stay suspended in one, and memory that only grows natively."""

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import disposescope as ds
from disposescope.leaks import LeakDetector, Report, Sample
from disposescope.leaks.verdicts.without_tensors import native_trend

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


def test_a_scope_that_was_entered_and_not_closed_is_told_with_its_line() -> None:
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


def test_a_generator_that_stays_suspended_in_a_scope_is_told_at_the_end_of_a_program() -> None:
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


def samples(rss: list[int], live: list[int] | None = None, cached: list[int] | None = None) -> tuple[Sample, ...]:
    nothing = [0] * len(rss)
    return tuple(
        Sample(float(index), row[0], {"cpu:0": row[1]}, row[2])
        for index, row in enumerate(zip(rss, live or nothing, cached or nothing, strict=True))
    )


def test_resident_memory_that_grows_alone_is_native_growth() -> None:
    steady = [200_000_000 + index * 1_000_000 for index in range(60)]
    trend = native_trend(samples(steady))
    assert trend is not None
    assert trend.nbytes_per_pass == pytest.approx(1_000_000)
    grown = [nbytes - 200_000_000 for nbytes in steady]
    assert native_trend(samples(steady, live=grown)) is None, "tracked tensors explain it"
    assert native_trend(samples(steady, cached=grown)) is None, "caches and fragmentation explain it"
    assert native_trend(samples([min(nbytes, 215_000_000) for nbytes in steady])) is None, "it has come to rest"
    assert native_trend(samples(steady[:20])) is None, "too short"
    small = [200_000_000 + index * 10_000 for index in range(60)]
    assert native_trend(samples(small)) is None, "too little"
    chance = random.Random(7)
    assert native_trend(samples([200_000_000 + chance.randrange(60_000_000) for _ in range(60)])) is None
