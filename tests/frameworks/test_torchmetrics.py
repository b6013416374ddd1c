"""torchmetrics in scopes: counts and lists that grow with each batch, computed at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.frameworks.rounds import LIBRARIES_WARN, Round, assert_same_as_plain, needs

torchmetrics: Any = needs("torchmetrics")
import torch
from torch import Tensor, nn
from torchmetrics import wrappers

pytestmark = LIBRARIES_WARN


def batches(count: int = 5) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.rand(8, 3, generator=generator), torch.randint(0, 3, (8,), generator=generator)) for _ in range(count)
    ]


def counts(step: Round) -> object:
    accuracy = torchmetrics.classification.MulticlassAccuracy(num_classes=3)
    mean, loss = torchmetrics.MeanMetric(), torchmetrics.SumMetric()
    for scores, labels in batches():
        with step():
            accuracy.update(scores.log_softmax(1), labels)
            mean.update(scores.square().mean())
            loss(nn.functional.cross_entropy(scores, labels))
    return accuracy.compute(), mean.compute(), loss.compute()


def lists(step: Round) -> object:
    curve = torchmetrics.classification.BinaryAUROC()
    everything = torchmetrics.CatMetric()
    ranks = torchmetrics.SpearmanCorrCoef()
    for scores, labels in batches():
        with step():
            curve.update(scores[:, 0] * 0.5, labels.clamp(max=1))
            everything.update(scores.exp())
            ranks.update(scores[:, 0] * 2, scores[:, 1] * 3)
    return curve.compute(), everything.compute(), ranks.compute()


def values_of_each_batch(step: Round) -> object:
    metric = torchmetrics.classification.MulticlassF1Score(num_classes=3, average="macro")
    everything = torchmetrics.CatMetric()
    seen: list[float] = []
    for scores, labels in batches():
        with step():
            seen.append(metric(scores * 2, labels).item())
            everything(scores.sum(1))
    return seen, metric.compute(), everything.compute()


def collections(step: Round) -> object:
    metrics = torchmetrics.MetricCollection(
        {
            "accuracy": torchmetrics.classification.MulticlassAccuracy(num_classes=3),
            "recall": torchmetrics.classification.MulticlassRecall(num_classes=3),
            "matrix": torchmetrics.classification.MulticlassConfusionMatrix(num_classes=3),
            "curve": torchmetrics.classification.MulticlassAUROC(num_classes=3),
        },
        prefix="test_",
    )
    for scores, labels in batches():
        with step():
            metrics.update(scores.softmax(1), labels)
    first = metrics.compute()
    metrics.reset()
    for scores, labels in batches(2):
        with step():
            metrics(scores.softmax(1), labels)
    return first, metrics.compute()


def wrapped(step: Round) -> object:
    running = wrappers.Running(torchmetrics.MeanMetric(), window=3)
    extremes = wrappers.MinMaxMetric(torchmetrics.MeanMetric())
    tracker = wrappers.MetricTracker(torchmetrics.MeanMetric(), maximize=False)
    by_class = wrappers.ClasswiseWrapper(torchmetrics.classification.MulticlassAccuracy(num_classes=3, average=None))
    history: list[object] = []
    for scores, labels in batches():
        tracker.increment()
        with step():
            running(scores.sum() * 2)
            extremes(scores.mean() * 2)
            tracker.update(scores.max() + 1)
            by_class.update(scores * 2, labels)
            history.append(extremes.compute()["max"].item())
    return (
        running.compute(),
        extremes.compute(),
        tracker.best_metric(),
        tracker.compute_all(),
        by_class.compute(),
        history,
    )


def metrics_of_a_model(step: Round) -> object:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.accuracy = torchmetrics.classification.MulticlassAccuracy(num_classes=3)
            self.loss = torchmetrics.MeanMetric()

    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for scores, labels in batches():
        with step():
            out = model.layer(scores)
            loss = nn.functional.cross_entropy(out, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.accuracy(out, labels)
            model.loss(loss.detach())
    return model.accuracy.compute(), model.loss.compute(), model.state_dict()


def own_metric_in_a_dict(step: Round) -> object:
    class Spread(torchmetrics.Metric):  # type: ignore[misc]  # its class is not known without the library
        def __init__(self) -> None:
            super().__init__()
            self.add_state("scores", default=[], dist_reduce_fx="cat")
            self.add_state("highest", default=torch.tensor(0.0), dist_reduce_fx="max")

        def update(self, scores: Tensor) -> None:
            self.scores.append(scores)
            self.highest = torch.maximum(self.highest, scores.max())

        def compute(self) -> Tensor:
            spread: Tensor = self.highest - torch.cat(self.scores).min()
            return spread

    metrics = {"train": Spread(), "test": Spread()}
    for index, (scores, _) in enumerate(batches()):
        with step():
            metrics["test" if index % 2 else "train"].update(scores.sin())
    return {name: metric.compute() for name, metric in metrics.items()}


PROGRAMS: tuple[Callable[[Round], object], ...] = (
    counts,
    lists,
    values_of_each_batch,
    collections,
    wrapped,
    metrics_of_a_model,
    own_metric_in_a_dict,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_program_runs_unchanged(program: Callable[[Round], object]) -> None:
    assert_same_as_plain(program)
