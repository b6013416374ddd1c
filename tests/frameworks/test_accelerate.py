"""Loops with Accelerate in scopes: its loaders, which read a batch ahead, and gathered metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from tests.frameworks.rounds import LIBRARIES_WARN, PLAIN, Round, assert_same_as_plain, needs

accelerate: Any = needs("accelerate")
import torch
from torch import nn

import disposescope as ds

pytestmark = LIBRARIES_WARN


def prepared() -> tuple[Any, Any, Any, Any, Any]:
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=8)
    data = torch.utils.data.TensorDataset(torch.randn(14, 4), torch.randint(0, 2, (14,)))
    loader = torch.utils.data.DataLoader(data, batch_size=3, shuffle=True)
    return accelerator, *accelerator.prepare(model, optimizer, schedule, loader)


def train_step(parts: tuple[Any, Any, Any, Any, Any], x: Any, y: Any) -> Any:
    accelerator, model, optimizer, schedule, _ = parts
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return loss


def scope_round_the_step(step: Round) -> object:
    parts = prepared()
    losses: list[float] = []
    for _ in range(2):
        for x, y in parts[-1]:
            with step():
                losses.append(train_step(parts, x, y).item())
    return losses, parts[1].state_dict()


def scoped_batches(step: Round) -> object:
    parts = prepared()
    losses: list[float] = []
    batches: Iterable[Any] = parts[-1]
    if step != PLAIN:
        batches = ds.scoped_batches(parts[-1], **(step.options or {}))
    for _ in range(2):
        for x, y in batches:
            losses.append(train_step(parts, x, y).item())
    return losses, parts[1].state_dict()


def gathered_predictions(step: Round) -> object:
    parts = prepared()
    accelerator, model, loader = parts[0], parts[1], parts[-1]
    correct, count = 0, 0
    tracked: list[float] = []
    with torch.no_grad():
        for x, y in loader:
            with step():
                found, labels = accelerator.gather_for_metrics((model(x).argmax(1), y))
                correct += int((found == labels).sum())
                count += len(labels)
                tracked.append(accelerator.reduce(x.sum()).item())
    return correct, count, tracked


def stream(step: Round) -> object:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            for number in range(7):
                yield torch.full((4,), float(number)) * 2

    accelerator = accelerate.Accelerator(cpu=True)
    loader = accelerator.prepare(torch.utils.data.DataLoader(Stream(), batch_size=2))
    sums: list[float] = []
    for x in loader:
        with step():
            sums.append(x.mul(3).sum().item())
    return sums


def tracker(step: Round) -> object:
    class Tracker(accelerate.tracking.GeneralTracker):  # type: ignore[misc]  # its class is not known without the library
        name = "memory"
        requires_logging_directory = False

        def __init__(self) -> None:
            super().__init__()
            self.rows: list[dict[str, Any]] = []

        @property
        def tracker(self) -> Any:
            return self.rows

        def store_init_configuration(self, values: Any) -> None:
            self.rows.append(values)

        def log(self, values: Any, step: Any, **kwargs: Any) -> None:
            self.rows.append(values)

    accelerator = accelerate.Accelerator(cpu=True, log_with=Tracker())
    accelerator.init_trackers("run", config={"rate": 1})
    for index in range(3):
        with step():
            accelerator.log({"sum": torch.ones(3).mul(index).sum()}, step=index)
    accelerator.end_training()
    return accelerator.get_tracker("memory", unwrap=True)


PROGRAMS: tuple[Callable[[Round], object], ...] = (
    scope_round_the_step,
    scoped_batches,
    gathered_predictions,
    stream,
    tracker,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_program_runs_unchanged(program: Callable[[Round], object]) -> None:
    assert_same_as_plain(program)
