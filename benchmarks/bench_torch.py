"""What does a scope cost a training step of PyTorch, a call, and a disposal?

The steps are of an LSTM on packed sequences, a small CNN, and a transformer block.

The two sides take turns step by step in one process, so that a machine whose speed drifts is fair
to both. Run as a script it prints the medians and their ratio; under pytest-benchmark each side is
a row.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
import timeit
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

import disposescope as ds
from disposescope.tensors.torch import disposal as _torch_disposal

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
def test_training_step(benchmark: Any, make: Callable[[], Callable[[], None]], scoped: bool) -> None:
    benchmark.group = make.__name__
    step = make()

    def run() -> None:
        with ds.dispose_scope() if scoped else contextlib.nullcontext():
            step()

    benchmark(run)


@pytest.mark.parametrize("scoped", [False, True])
def test_tiny_add(benchmark: Any, scoped: bool) -> None:
    benchmark.group = "add of two elements"
    tensor = torch.ones(2)
    with ds.dispose_scope() if scoped else contextlib.nullcontext():
        benchmark(torch.add, tensor, tensor)


CALLS: dict[str, Callable[[torch.Tensor], object]] = {
    "t + t": lambda tensor: tensor + tensor,
    "t.view(2)": lambda tensor: tensor.view(2),
    "t.dim()": lambda tensor: tensor.dim(),
    "t.shape": lambda tensor: tensor.shape,
}


def calls(rounds: int = 100, number: int = 500) -> None:
    """Print the added microseconds of a call: medians of differences of neighbouring runs."""
    tensor = torch.ones(2)
    for name, call in CALLS.items():
        plain: list[float] = []
        inside: list[float] = []
        for _ in range(rounds):
            plain.append(timeit.timeit(lambda call=call: call(tensor), number=number) / number * 1e6)
            with ds.dispose_scope():
                inside.append(timeit.timeit(lambda call=call: call(tensor), number=number) / number * 1e6)
        on_top = statistics.median(b - a for a, b in zip(plain, inside, strict=True))
        print(f"{name:>17}: plain {statistics.median(plain):.2f} us, in a scope {on_top:.2f} us on top "
              f"({min(inside) - min(plain):.2f} between the fastest)")  # fmt: skip


def disposals(rounds: int = 9) -> None:
    """Print the microseconds of each disposal, beside the least that PyTorch needs for one.

    By the clock of the thread: a run of many is longer than a slice of a busy machine.
    """
    spare, placeholder, dead = (
        getattr(_torch_disposal, name) for name in ("Spare", "_PLACEHOLDER", "DisposedTorchTensor")
    )
    make, swap = torch.Tensor._make_subclass, torch._C._swap_tensor_impl

    def floor(tensors: list[torch.Tensor]) -> float:
        started = time.thread_time()
        for tensor in tensors:
            other = make(spare, placeholder)
            swap(tensor, other)
            other.__class__ = torch.Tensor
            tensor.__class__ = dead
        return time.thread_time() - started

    def scoped(count: int) -> float:
        with contextlib.ExitStack() as stack:
            stack.enter_context(ds.dispose_scope())
            held = [torch.empty(2) for _ in range(count)]
            started = time.thread_time()
        taken = time.thread_time() - started
        del held
        return taken

    for count in (1_000, 10_000, 100_000):
        inside, below = ([], [])
        for _ in range(rounds):
            inside.append(scoped(count) / count * 1e6)
            below.append(floor([torch.empty(2) for _ in range(count)]) / count * 1e6)
        print(f"dispose {count:>9}: {statistics.median(inside):.2f} us each, floor {statistics.median(below):.2f} us, "
              f"fastest {min(inside):.2f} over {min(below):.2f}")  # fmt: skip


def beside_threads(rounds: int = 150) -> None:
    """Print what it costs to release a batch beside three idle threads.

    Other threads are looked at once, at the end of all releases, or at each of them.
    """
    pending = _torch_disposal.PENDING
    images = [torch.randint(0, 255, (96, 96, 3), dtype=torch.uint8) for _ in range(32)]

    def batch() -> list[torch.Tensor]:
        scaled = [image.permute(2, 0, 1).float() / 255 for image in images]
        centred = [(each - 0.5) / 0.25 for each in scaled]
        flipped = [each.flip(-1) for each in centred]
        return [*scaled, *centred, *flipped, torch.stack(flipped)]

    def release(scoped: bool) -> float:
        started = time.perf_counter()
        with ds.dispose_scope() if scoped else contextlib.nullcontext():
            kept = batch()
        del kept
        return time.perf_counter() - started

    together = pending.add

    def at_each(tensor: object) -> None:
        together(tensor)
        pending.settle()

    over = threading.Event()
    for _ in range(3):
        threading.Thread(target=over.wait).start()
    try:
        plain, at_the_end, each = ([], [], [])
        for _ in range(rounds):
            plain.append(release(False))
            at_the_end.append(release(True))
            with mock.patch.object(type(pending), "add", staticmethod(at_each)):
                each.append(release(True))
    finally:
        over.set()
    once, each_time = (statistics.median(times) / statistics.median(plain) for times in (at_the_end, each))
    print(f"a batch of 32 images beside three idle threads: plain {statistics.median(plain) * 1e3:.2f} ms, "
          f"in a scope {once:.2f} x, where other threads are looked at for each tensor {each_time:.2f} x")  # fmt: skip


def main(rounds: int = 100) -> None:
    calls()
    disposals()
    beside_threads()
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
