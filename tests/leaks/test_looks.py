"""A look collects nothing, and the program's settings of its garbage collector stay."""

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest

import disposescope as ds
from disposescope.leaks.detector.looks import undisturbed_look, unless_another_looks


def test_no_collection_starts_meanwhile_and_the_thresholds_come_back() -> None:
    before = gc.get_threshold()
    with undisturbed_look():
        with undisturbed_look():
            assert gc.get_threshold()[0] == 0
        assert gc.get_threshold()[0] == 0
    assert gc.get_threshold() == before


def test_a_program_that_switches_its_collector_off_meanwhile_finds_it_off() -> None:
    assert gc.isenabled()
    try:
        with undisturbed_look():
            gc.disable()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_threshold_that_the_program_sets_meanwhile_stays() -> None:
    before = gc.get_threshold()
    try:
        with undisturbed_look():
            gc.set_threshold(5000, 20, 30)
        assert gc.get_threshold()[0] == 5000
    finally:
        gc.set_threshold(*before)


def test_a_report_waits_for_that_of_another_thread() -> None:
    with ThreadPoolExecutor(1) as pool, ds.LeakDetector() as detector:
        kept = ds.ones(3)
        with undisturbed_look():
            later = pool.submit(detector.report)
            with pytest.raises(TimeoutError):
                later.result(timeout=0.2)
        assert [leak.holder for leak in later.result().leaks] == [leak.holder for leak in detector.report().leaks]
        del kept


def test_a_thread_of_the_program_does_not_wait_for_a_look() -> None:
    def may_look() -> bool:
        with unless_another_looks() as may:
            return may

    with ThreadPoolExecutor(1) as pool:
        with undisturbed_look():
            assert not pool.submit(may_look).result()
            assert may_look()
        assert pool.submit(may_look).result()
