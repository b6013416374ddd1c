"""A budget is enforced at the allocation that breaks it."""

from __future__ import annotations

import numpy as np
import pytest

import disposescope as ds


def test_the_allocation_that_breaks_the_budget_is_refused_and_the_scope_goes_on() -> None:
    with ds.dispose_scope("b", budget="1 MiB") as scope:
        small = np.zeros(1000)
        with pytest.raises(MemoryError, match="Unable to allocate"):
            np.zeros(1_000_000)
        for _ in range(10):
            np.zeros(100_000)
        with pytest.raises(MemoryError):
            [np.zeros(50_000) for _ in range(3)]
        assert scope.nbytes == small.nbytes
        assert np.ones(100_000).sum() == 100_000


def test_the_error_gets_a_note_before_it_leaves_the_scope() -> None:
    with pytest.raises(MemoryError) as caught:
        with ds.dispose_scope("outer", budget=1_000_000):
            _first = np.zeros(100_000)
            with ds.dispose_scope("inner"):
                np.zeros(100_000)
    [note] = caught.value.__notes__
    assert note.startswith(
        "the budget of scope 'outer' refused it: budget 1000000 bytes, live 800000 bytes, requested 800000 bytes:\n"
        "  800000 bytes in 1 at "
    )
    assert "test_arena_budgets.py" in note


def test_an_error_of_another_origin_gets_no_note() -> None:
    with pytest.raises(MemoryError) as caught:
        with ds.dispose_scope(budget=1000):
            with pytest.raises(MemoryError):
                np.zeros(1_000_000)
            np.empty(1 << 55, "u1")
    assert not any("budget 1000 bytes" in note and "36028797018963968" not in note for note in caught.value.__notes__)
    with pytest.raises(MemoryError) as caught:
        with ds.dispose_scope():
            raise MemoryError("mine")
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize(("outer", "inner"), [(10_000, 1_000_000), (1_000_000, 10_000)])
def test_of_nested_budgets_the_tightest_wins(outer: int, inner: int) -> None:
    with ds.dispose_scope(budget=outer), ds.dispose_scope(), ds.dispose_scope(budget=inner):
        np.zeros(1000)
        with pytest.raises(MemoryError):
            np.zeros(2000)


def test_a_budget_counts_what_inner_scopes_hand_over_and_not_what_is_moved_out() -> None:
    with ds.dispose_scope() as outest:
        with ds.dispose_scope(budget=100_000) as scope:
            with ds.dispose_scope():
                array = np.zeros(10_000)
            assert array in scope
            with pytest.raises(MemoryError):
                np.zeros(10_000)
            scope.move_to_outer(array)
            np.zeros(10_000)
        assert array in outest


def test_a_budget_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="kept by the arena"):
        ds.dispose_scope(budget=1, arena=False)
    with pytest.raises(ValueError, match="not a number"):
        ds.dispose_scope(budget="much")


def test_a_budget_bounds_tensors() -> None:
    with ds.dispose_scope(budget="100 kB"):
        with pytest.raises(MemoryError):
            ds.zeros(100_000)
