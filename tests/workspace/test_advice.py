"""The peak of a pass, the lines of what lives there, and advice whose effect is what it says."""

from __future__ import annotations

import ast
import gc
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import disposescope as ds

N = 300_000
"""Elements: arrays of 2.4 MB, which NumPy reuses for results where it may."""


def peak_of(function: Callable[[], object]) -> ds.Peak:
    workspace = ds.Workspace(function.__name__)
    with workspace.run():
        function()
    return workspace.peak()


# Pairs of programs: before, what is advised, and after following it by hand.


def used_early() -> float:
    hidden = np.ones(N)
    total = float(hidden.sum())
    a = np.ones(N)
    b = a + 1.0
    return total + float(b.sum())


def used_early_then_deleted() -> float:
    hidden = np.ones(N)
    total = float(hidden.sum())
    del hidden
    a = np.ones(N)
    b = a + 1.0
    return total + float(b.sum())


def copied() -> float:
    a = np.ones(N)
    b = a + 1.0
    b = np.sqrt(b)
    return float(b.sum())


def written_in_place() -> float:
    a = np.ones(N)
    b = a + 1.0
    np.sqrt(b, out=b)
    return float(b.sum())


def held_for_later() -> float:
    gate = np.ones(N)
    total = float(gate.sum())
    a = np.ones(2 * N)
    b = a * 2.0
    total += float(b.sum())
    del a, b
    c = gate * 3.0
    return total + float(c.sum())


def made_again() -> float:
    gate = np.ones(N)
    total = float(gate.sum())
    del gate
    a = np.ones(2 * N)
    b = a * 2.0
    total += float(b.sum())
    del a, b
    gate = np.ones(N)
    c = gate * 3.0
    return total + float(c.sum())


def make(n: int) -> np.ndarray:
    return np.ones(n)


def returned_by_a_function() -> float:
    first = make(N)
    second = first * 2.0
    third = second * 2.0
    return float(third.sum())


def returned_by_a_function_then_deleted() -> float:
    first = make(N)
    second = first * 2.0
    del first
    third = second * 2.0
    return float(third.sum())


def cast() -> float:
    wide = np.ones(N)
    narrow = wide.astype(np.float32)
    squared = narrow * narrow
    cubed = squared * narrow
    return float(cubed.sum())


def cast_then_deleted() -> float:
    wide = np.ones(N)
    narrow = wide.astype(np.float32)
    del wide
    squared = narrow * narrow
    cubed = squared * narrow
    return float(cubed.sum())


def held_over_a_loop() -> float:
    table = np.ones(N)
    first = float(table[0])
    for _ in range(3):
        a = np.ones(N)
        b = a + first
        first = float(b.sum())
        del a, b
    return first


def deleted_before_the_loop() -> float:
    table = np.ones(N)
    first = float(table[0])
    del table
    for _ in range(3):
        a = np.ones(N)
        b = a + first
        first = float(b.sum())
        del a, b
    return first


def clipped() -> float:
    a = np.ones(N)
    a = np.clip(a, 0.0, 1.0)
    return float(a.sum())


def clipped_in_place() -> float:
    a = np.ones(N)
    np.clip(a, 0.0, 1.0, out=a)
    return float(a.sum())


# NumPy makes the sum in the block of its first part; the second part is of the same call.


def blended(
    rows: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return 0.5 * rows + 0.25 * rows


def made_by_a_sum_of_a_helper() -> float:
    rows, total = np.ones(N), 0.0
    for _ in range(3):
        blend = blended(rows)
        factors = np.exp(rows)
        products = factors * blend
        total += float(products.sum())
    return total


def made_by_a_sum_of_a_helper_then_deleted() -> float:
    rows, total = np.ones(N), 0.0
    for _ in range(3):
        blend = blended(rows)
        factors = np.exp(rows)
        products = factors * blend
        del blend
        total += float(products.sum())
    return total


@pytest.mark.parametrize(
    ("before", "advised", "after"),
    [
        (used_early, "del hidden after", used_early_then_deleted),
        (copied, "in place at", written_in_place),
        (held_for_later, "recompute gate before", made_again),
        (returned_by_a_function, "del first after", returned_by_a_function_then_deleted),
        (cast, "del wide after", cast_then_deleted),
        (held_over_a_loop, "del table after", deleted_before_the_loop),
        (clipped, "in place at", clipped_in_place),
        (made_by_a_sum_of_a_helper, "del blend after", made_by_a_sum_of_a_helper_then_deleted),
    ],
)
def test_advice_lowers_the_peak_by_what_it_says(
    before: Callable[[], float], advised: str, after: Callable[[], float]
) -> None:
    peak = peak_of(before)
    advice = next(each for each in peak.advice if each.text.startswith(advised))
    measured = peak_of(after)
    assert advice.peak_nbytes == pytest.approx(measured.nbytes, rel=0.02)
    assert advice.saved_nbytes == pytest.approx(peak.nbytes - measured.nbytes, rel=0.02)
    assert "test_advice.py:" in advice.text


def test_a_variable_that_the_next_round_uses_is_left_alone() -> None:
    def rounds() -> float:
        state = np.ones(N)
        for _ in range(3):
            state = state * 2.0
        return float(state.sum())

    assert not [each for each in peak_of(rounds).advice if each.text.startswith("del")]


def test_a_variable_of_a_closure_is_left_alone() -> None:
    def closure() -> float:
        hidden = np.ones(N)

        def later() -> float:
            return float(hidden.sum())

        a = np.ones(N)
        b = a + 1.0
        return float(b.sum()) + later()

    assert not [each for each in peak_of(closure).advice if each.text.startswith("del hidden")]


def test_what_a_container_holds_after_its_function_is_left_alone() -> None:
    kept: list[np.ndarray] = []

    def keep() -> None:
        batch = np.ones(N)
        kept.append(batch)

    def keeps_it() -> float:
        keep()
        a = np.ones(N)
        b = a + 1.0
        return float(b.sum())

    assert not [each for each in peak_of(keeps_it).advice if each.text.startswith("del batch")]


def test_the_peak_names_the_lines_of_what_lives_there() -> None:
    peak = peak_of(used_early)
    assert peak.nbytes == pytest.approx(3 * N * 8, rel=0.01)
    first = used_early.__code__.co_firstlineno
    lines = [row.line for row in peak.living if row.nbytes > N]
    assert sorted(int(line.split(":")[1].split()[0]) - first for line in lines) == [1, 3, 4]
    text = str(peak)
    assert text.startswith("peak 7.2 MB at ")
    assert "what would lower it:\n  del hidden after " in text


def test_the_peak_of_nothing() -> None:
    peak = peak_of(lambda: None)
    assert (peak.nbytes, peak.line, peak.living, peak.advice) == (0, "<nothing>", (), ())


# Programs whose advice would be wrong, if the code were read from the top to the bottom.


def in_a_branch(flag: bool = True) -> float:
    if flag:
        used = np.ones(N)
        unused = 1
    else:
        used = np.zeros(N)
        unused = 2
    other = np.ones(N)
    return float((other + 1.0).sum() + used[0]) + unused


def perhaps_bound_again(flag: bool = False) -> float:
    used = np.ones(N)
    if flag:
        used = used + 1.0
    other = np.ones(N)
    return float((other + 1.0).sum() + used[0])


def in_a_handler() -> float:
    try:
        used = np.ones(N)
        int("none")
    except ValueError:
        other = np.ones(N)
        return float((other + 1.0).sum() + used[0])
    return 0.0


def changed_in_place() -> float:
    used = np.ones(N)
    used += 1.0
    other = np.ones(N)
    return float((other + 1.0).sum() + used[0])


def seen_through_a_view() -> float:
    used = np.ones(N)
    pairs = used.reshape(-1, 2)
    other = np.ones(N)
    return float((other + 1.0).sum() + pairs[0, 0])


def under_another_name() -> float:
    used = np.ones(N)
    first = used
    other = np.ones(N)
    return float((other + 1.0).sum() + first[0])


def in_a_dict() -> float:
    used = np.ones(N)
    cache = {"used": used}
    other = np.ones(N)
    return float((other + 1.0).sum() + cache["used"][0])


def in_a_list() -> float:
    rows: list[np.ndarray[tuple[int, ...], np.dtype[np.float64]]] = []
    used = np.ones(N)
    rows.append(used)
    other = np.ones(N)
    return float((other + 1.0).sum() + rows[0][0])


def made_by_a_sum() -> float:
    other = np.ones(N)
    used = blended(other)
    factors = np.exp(other)
    return float((factors * used).sum())


@pytest.mark.parametrize(
    "function",
    [
        made_by_a_sum,
        in_a_branch,
        perhaps_bound_again,
        in_a_handler,
        changed_in_place,
        seen_through_a_view,
        under_another_name,
        in_a_dict,
        in_a_list,
    ],
)
def test_what_is_used_later_is_not_to_be_deleted(function: Callable[[], object]) -> None:
    assert not [each for each in peak_of(function).advice if each.text.startswith("del used")]


def test_what_is_changed_in_place_is_to_be_deleted_after_its_last_use() -> None:
    def changed() -> float:
        used = np.ones(N)
        used += 1.0
        total = float(used.sum())
        other = np.ones(N)
        return total + float((other + 1.0).sum())

    [text] = [each.text for each in peak_of(changed).advice if each.text.startswith("del used")]
    assert text.endswith(f":{changed.__code__.co_firstlineno + 3}")


def both_are_needed_at_the_end() -> int:
    rows = [np.ones(N) * k for k in range(4)]
    return len(rows)


def gathered() -> float:
    numbers = np.arange(N)
    values = np.ones(N)
    values = values[numbers]
    return float(values.sum())


@pytest.mark.parametrize("function", [both_are_needed_at_the_end, gathered])
def test_in_place_is_not_advised_where_it_cannot_be(function: Callable[[], object]) -> None:
    line = function.__code__.co_firstlineno
    advised = [each.text for each in peak_of(function).advice if each.text.startswith("in place")]
    assert not [each for each in advised if f":{line + 1} (" in each or f":{line + 3} (" in each]


def test_a_variable_of_a_copy_of_a_file_is_another_variable(tmp_path: Path) -> None:
    copies: list[Any] = []
    for name, size in (("first.py", N), ("second.py", N // 4)):
        names: dict[str, Any] = {"np": np, "N": size}
        (tmp_path / name).write_text(inspect.getsource(copied))
        exec(compile((tmp_path / name).read_text(), tmp_path / name, "exec"), names)
        copies.append(names["copied"])
    alone = peak_of(copies[0]).advice
    assert alone
    assert peak_of(lambda: [each() for each in copies]).advice == alone


def test_the_source_that_advice_has_read_is_kept_no_longer(tmp_path: Path) -> None:
    file = tmp_path / "read_once.py"
    names: dict[str, Any] = {"np": np, "N": N}
    file.write_text(inspect.getsource(used_early))
    exec(compile(file.read_text(), file, "exec"), names)

    def parsed() -> int:
        gc.collect()
        return sum(isinstance(thing, ast.Module) for thing in gc.get_objects())

    before = parsed()
    assert peak_of(names["used_early"]).advice
    assert parsed() == before
