"""A ticker ends with the program, makes way for forks, and takes little time."""

import os
import threading
import warnings
from types import SimpleNamespace
from typing import Any, cast

import pytest

from disposescope.leaks.detector import recording
from disposescope.leaks.detector.recording import Ticker


def test_it_calls_until_it_is_stopped() -> None:
    calls: list[int] = []
    called = threading.Event()

    def tick() -> None:
        calls.append(threading.get_ident())
        called.set()

    ticker = Ticker(tick, 0.001)
    ticker.start()
    called.wait()
    ticker.stop()
    count = len(calls)
    ticker.stop()
    assert len(set(calls)) == 1
    assert threading.get_ident() not in calls
    assert len(calls) == count


def test_a_program_that_counts_its_threads_does_not_see_it() -> None:
    called = threading.Event()
    before = threading.enumerate()
    ticker = Ticker(called.set, 0.001)
    ticker.start()
    called.wait()
    assert threading.enumerate() == before
    ticker.stop()


def test_a_failure_ends_the_calls_and_is_kept() -> None:
    failed = threading.Event()

    def tick() -> None:
        failed.set()
        raise ValueError("no")

    ticker = Ticker(tick, 0.001)
    ticker.start()
    failed.wait()
    ticker.stop()
    assert isinstance(ticker.failure, ValueError)


def test_it_is_woken_some_time_after_the_signal() -> None:
    woken = threading.Event()
    ticker = Ticker(lambda: None, 3600.0, woken=woken.set, woken_after_s=0.001)
    ticker.start()
    woken.wait()
    woken.clear()
    ticker.signal.release()
    woken.wait()
    ticker.stop()


def test_who_stops_it_does_not_wait_for_what_it_does_when_it_is_woken() -> None:
    """It is woken at its start: it may have been while it was stopped, as at each fork."""
    woken: list[object] = []
    ticker = Ticker(lambda: None, 3600.0, woken=lambda: woken.append(None), woken_after_s=3600.0)
    ticker.start()
    ticker.stop()
    assert woken == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_the_process_has_one_thread_while_it_forks_and_the_child_none_of_it() -> None:
    called = threading.Event()
    before = threading.active_count()
    ticker = Ticker(called.set, 0.001)
    ticker.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # JAX's, where another test has imported it: it has threads of its own.
            warnings.filterwarnings("ignore", "os.fork.. was called", RuntimeWarning)
            pid = os.fork()
        if not pid:
            os._exit(threading.active_count() - 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        called.clear()
        called.wait()
    finally:
        ticker.stop()
    assert threading.active_count() == before


def test_what_takes_long_is_done_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, pauses = 0.0, []

    class Signal:
        def acquire(self, timeout: float) -> bool:
            pauses.append(timeout)
            ticker._is_over = len(pauses) == 3
            return False

    def tick() -> None:
        nonlocal now_s
        now_s += 0.5

    monkeypatch.setattr(recording, "time", SimpleNamespace(perf_counter=lambda: now_s))
    ticker = Ticker(tick, 0.001)
    ticker.signal = cast("Any", Signal())
    ticker._run()
    assert pauses == [0.001, 25, 25]
