"""PyTorch's tensors count against scopes' budgets: each new storage once, until its memory goes."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import disposescope as ds
from disposescope.tensors.arena.budgets import BUDGETS

torch: Any = pytest.importorskip("torch")


def charged(scope: ds.DisposeScope) -> int:
    assert scope.arena is not None
    return scope.arena.charged_nbytes


def test_a_storage_counts_once_however_many_tensors_show_it() -> None:
    with ds.dispose_scope(budget="1 MiB") as scope:
        tensor = torch.zeros(1000)
        held = [tensor[:10], tensor.view(10, 100), tensor.detach(), tensor.add_(1), tensor.reshape(100, 10).T]
        torch.add(tensor, 1, out=tensor)
        assert charged(scope) == 4000
        del tensor
        assert charged(scope) == 4000
        held.clear()
        assert charged(scope) == 0
        assert not BUDGETS.charges


def test_what_a_graph_saves_counts_until_the_graph_is_gone() -> None:
    weight = torch.ones(1000, requires_grad=True)
    with ds.dispose_scope(budget="1 MiB") as scope:
        loss = torch.exp(weight).sum()
        assert charged(scope) == 4004
        loss.backward()
        del loss
        gc.collect()
        assert charged(scope) == 0


def test_memory_from_before_the_scope_and_memory_of_arrays_is_not_counted_again() -> None:
    before = torch.zeros(1000)
    with ds.dispose_scope(budget="1 MiB") as scope:
        _view = before[1:]
        assert charged(scope) == 0
        array = np.zeros(1000)
        _shown = torch.as_tensor(array)
        _also = torch.from_numpy(array)
        _third = torch.as_tensor(array[10:])
        assert charged(scope) == 8000


def test_a_disposed_handle_counts_while_somebody_else_has_the_memory() -> None:
    with ds.dispose_scope(budget="1 MiB") as scope:
        tensor = torch.zeros(1000)
        view = tensor[:1]
        ds.dispose(tensor)
        assert charged(scope) == 4000
        ds.dispose(view)
        assert charged(scope) == 0


def test_the_birth_that_exceeds_the_budget_is_refused_with_notes_and_the_scope_goes_on() -> None:
    with pytest.raises(MemoryError, match=r"4000000 bytes for a torch.Tensor of shape \(1000000,\)") as caught:
        with ds.dispose_scope("tight", budget="1 MiB") as scope:
            small = torch.zeros(100_000)
            with pytest.raises(MemoryError):
                small.repeat(10)
            assert len(scope) == 1
            gc.collect()
            assert charged(scope) == small.numel() * 4
            assert torch.ones(100_000).sum() == 100_000
            torch.zeros(1_000_000)
    [note] = caught.value.__notes__
    assert note.startswith(
        "the budget of scope 'tight' refused it: budget 1048576 bytes, live 400000 bytes, requested 4000000 bytes:\n"
        "  400000 bytes in 1 at "
    )
    assert "test_torch_budgets.py" in note


def test_of_several_results_all_are_born_or_none() -> None:
    with ds.dispose_scope(budget=20_000) as scope:
        tensor = torch.zeros(1000)
        first = tensor.sort()
        with pytest.raises(MemoryError):
            # The values would fit, and the indices do not.
            tensor.sort()
        gc.collect()
        assert len(scope) == 3
        assert charged(scope) == 16_000
        del first, tensor
        assert charged(scope) == 0
        assert len(scope) == 0


def test_arrays_and_tensors_share_one_budget() -> None:
    with ds.dispose_scope(budget="1 MiB"):
        _tensor = torch.zeros(200_000)
        with pytest.raises(MemoryError):
            np.zeros(100_000)


def test_of_nested_budgets_the_tightest_wins_and_what_moves_out_counts_outside() -> None:
    with ds.dispose_scope(budget=100_000) as outer:
        with ds.dispose_scope(), ds.dispose_scope(budget=10_000) as inner:
            tensor = torch.zeros(2000)
            with pytest.raises(MemoryError):
                torch.zeros(1000)
            inner.move_to(outer, tensor)
            assert (charged(inner), charged(outer)) == (0, 8000)
            torch.zeros(1000)
        assert charged(outer) == 8000
    assert ds.is_disposed(tensor)
    assert not BUDGETS.scopes
    assert not BUDGETS.charges


def test_what_is_detached_counts_nowhere() -> None:
    with ds.dispose_scope(budget=10_000) as scope:
        kept = scope.detach(torch.zeros(2000))
        assert charged(scope) == 0
        torch.zeros(2000)
    assert kept.sum() == 0


def test_without_a_budget_nothing_is_counted() -> None:
    with ds.dispose_scope():
        _tensor = torch.zeros(2000)
        assert not BUDGETS.charges


def test_transformed_functions_obey_it() -> None:
    with ds.dispose_scope(budget=10_000):
        tensor = torch.zeros(1000)
        with pytest.raises(MemoryError):
            torch.vmap(lambda row: torch.stack([row] * 3))(tensor)


def test_collating_and_packing_obey_it() -> None:
    rows = [torch.zeros(1000), torch.zeros(500)]
    with ds.dispose_scope(budget=100_000):
        ds.pack_sequence(rows)
        with pytest.raises(MemoryError):
            ds.pack_collate()([{"x": row} for row in [torch.zeros(1000, dtype=torch.float64)] * 20])
    arrays = [np.zeros(1000), np.zeros(500)]
    for make in (ds.pack_sequence, ds.pad_sequence, ds.pack_collate(["x"])):
        batch: Any = [{"x": array} for array in arrays] if make not in (ds.pack_sequence, ds.pad_sequence) else arrays
        with ds.dispose_scope(budget=8_000) as scope:
            with pytest.raises(MemoryError):
                make(batch)
            gc.collect()
            assert charged(scope) == 0
