"""A ticker ends with the program, makes way for forks, and takes little time."""

import os
import threading
import time
import warnings

import pytest

from disposescope.leaks.detector.recording import Ticker


def test_it_calls_until_it_is_stopped() -> None:
    calls: list[str] = []
    called = threading.Event()

    def tick() -> None:
        calls.append(threading.current_thread().name)
        called.set()

    ticker = Ticker(tick, 0.001)
    ticker.start()
    assert called.wait(10)
    ticker.stop()
    ticker.stop()
    count = len(calls)
    time.sleep(0.01)
    assert len(calls) == count
    assert set(calls) == {"leak-report"}


def test_a_failure_ends_the_calls_and_is_kept() -> None:
    failed = threading.Event()

    def tick() -> None:
        failed.set()
        raise ValueError("no")

    ticker = Ticker(tick, 0.001)
    ticker.start()
    assert failed.wait(10)
    ticker.stop()
    assert isinstance(ticker.failure, ValueError)


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
        assert called.wait(10)
    finally:
        ticker.stop()
    assert threading.active_count() == before


def test_what_takes_long_is_done_less_often() -> None:
    times: list[float] = []
    twice = threading.Event()

    def tick() -> None:
        times.append(time.perf_counter())
        time.sleep(0.01)
        if len(times) == 2:
            twice.set()

    ticker = Ticker(tick, 0.001)
    ticker.start()
    assert twice.wait(60)
    ticker.stop()
    assert times[1] - times[0] >= 50 * 0.01
