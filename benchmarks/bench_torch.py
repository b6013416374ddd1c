"""A training step with and without a scope around it, in turns: an LSTM on packed sequences, a small CNN, a
transformer block.

The two sides take turns step by step in one process, so that a machine whose speed drifts is fair to both. Run as a
script it prints the medians and their ratio; under pytest-benchmark each side is a row.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable

import pytest

import disposescope as ds

torch = pytest.importorskip("torch", reason="measures PyTorch")
nn = torch.nn


def lstm_step() -> Callable[[], None]:
    torch.manual_seed(0)
    model = nn.LSTM(64, 128)
    optimizer = torch.optim.Adam(model.parameters())
    packed = nn.utils.rnn.pack_sequence([torch.randn(length, 64) for length in range(60, 20, -2)])

    def step() -> None:
        output, _ = model(packed)
        loss = output.data.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def cnn_step() -> Callable[[], None]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs, targets = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))

    def step() -> None:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def transformer_step() -> Callable[[], None]:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(16, 32, 64)

    def step() -> None:
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


STEPS = [lstm_step, cnn_step, transformer_step]


@pytest.mark.parametrize("scoped", [False, True])
@pytest.mark.parametrize("make", STEPS)
def test_training_step(benchmark: Callable[..., object], make: Callable[[], Callable[[], None]], scoped: bool) -> None:
    benchmark.group = make.__name__  # type: ignore[attr-defined]
    step = make()

    def run() -> None:
        with ds.dispose_scope() if scoped else contextlib.nullcontext():
            step()

    benchmark(run)


@pytest.mark.parametrize("scoped", [False, True])
def test_tiny_add(benchmark: Callable[..., object], scoped: bool) -> None:
    benchmark.group = "add of two elements"  # type: ignore[attr-defined]
    tensor = torch.ones(2)
    with ds.dispose_scope() if scoped else contextlib.nullcontext():
        benchmark(torch.add, tensor, tensor)


def main(rounds: int = 100) -> None:
    for make in STEPS:
        step = make()
        times: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(rounds):
            for scoped in (False, True):
                started = time.perf_counter()
                with ds.dispose_scope() if scoped else contextlib.nullcontext():
                    step()
                times[scoped].append(time.perf_counter() - started)
        plain, inside = (statistics.median(times[scoped]) * 1e3 for scoped in (False, True))
        pairs = [b / a for a, b in zip(times[False], times[True], strict=True)]
        ratio = statistics.median(pairs)
        print(f"{make.__name__:>17}: plain {plain:.3f} ms, in a scope {inside:.3f} ms, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
