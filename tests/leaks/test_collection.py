"""A look collects nothing, and the program's settings of its garbage collector stay."""

import gc

from disposescope.leaks.detector.collection import collection_paused


def test_no_collection_starts_meanwhile_and_the_thresholds_come_back() -> None:
    before = gc.get_threshold()
    with collection_paused():
        with collection_paused():
            assert gc.get_threshold()[0] == 0
        assert gc.get_threshold()[0] == 0
    assert gc.get_threshold() == before


def test_a_program_that_switches_its_collector_off_meanwhile_finds_it_off() -> None:
    assert gc.isenabled()
    try:
        with collection_paused():
            gc.disable()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_threshold_that_the_program_sets_meanwhile_stays() -> None:
    before = gc.get_threshold()
    try:
        with collection_paused():
            gc.set_threshold(5000, 20, 30)
        assert gc.get_threshold()[0] == 5000
    finally:
        gc.set_threshold(*before)
