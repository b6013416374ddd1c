"""What does a leak detector cost?

The cases are a training step, a loop of births, and a million live tensors.

Sides take turns in one process: off, on with one frame, with ten, sampled, and the peers where they
are installed (``tracemalloc`` of the standard library, ``memray``; ``objgraph`` looks from time to
time, as ``mark()`` does). Run as a script it prints medians of ratios; ``--million`` (``--torch``,
``--numpy``) the bytes and times of a million live tensors.
"""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pytest

import disposescope as ds

Program = Callable[[], object]
Side = Callable[[], contextlib.AbstractContextManager[object]]


def micro_arrays() -> Program:
    def loop() -> None:
        for _ in range(100):
            np.ones(1000)

    return loop


def micro_tensors() -> Program:
    def loop() -> None:
        tensor = ds.ones(1000)
        for _ in range(100):
            tensor + 1

    return loop


def micro_torch() -> Program:
    torch = pytest.importorskip("torch")
    tensor = torch.ones(10_000)

    def loop() -> None:
        for _ in range(100):
            torch.relu(tensor)

    return loop


def training_step() -> Program:
    """Return a training step of an LSTM on packed sequences with Adam, as in bench_torch.py."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.LSTM(64, 128)
    optimizer = torch.optim.Adam(model.parameters())
    packed = torch.nn.utils.rnn.pack_sequence([torch.randn(length, 64) for length in range(60, 20, -2)])

    def step() -> None:
        output, _ = model(packed)
        loss = output.data.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def small_step() -> Program:
    """Return a step of a small transformer block with SGD, which makes many small calls."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    block = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    optimizer = torch.optim.SGD(block.parameters(), lr=0.01)
    batch = torch.randn(8, 32, 64)

    def step() -> None:
        loss = block(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


PROGRAMS = {
    "training step (LSTM)": training_step,
    "training step (transformer block)": small_step,
    "micro-loop: np.ones(1000)": micro_arrays,
    "micro-loop: ds.Tensor + 1": micro_tensors,
    "micro-loop: torch.relu of 10,000": micro_torch,
}


@contextlib.contextmanager
def traced(frames: int) -> Iterator[None]:
    tracemalloc.start(frames)
    try:
        yield
    finally:
        tracemalloc.stop()


def peers() -> dict[str, Side]:
    sides: dict[str, Side] = {"tracemalloc": lambda: traced(1), "tracemalloc, 10 frames": lambda: traced(10)}
    with contextlib.suppress(ImportError):
        import memray

        def tracked() -> contextlib.AbstractContextManager[object]:
            file = os.path.join(tempfile.mkdtemp(), "memray.bin")
            return memray.Tracker(file)

        sides["memray"] = tracked
    return sides


def sides() -> dict[str, Side]:
    return {
        "off": contextlib.nullcontext,
        "one frame": ds.LeakDetector,
        "ten frames": lambda: ds.LeakDetector(frames=10),
        "sampled, 512 KiB": lambda: ds.LeakDetector(sample_nbytes=512 << 10),
        **peers(),
    }


def compare(program: Program, rounds: int = 15) -> dict[str, tuple[float, float]]:
    """Return the median time of each side, and its median ratio to the side without a detector."""
    times: dict[str, list[float]] = {name: [] for name in sides()}
    for _ in range(3):
        program()
    began = time.perf_counter()
    program()
    repeats = max(1, int(0.03 / (time.perf_counter() - began)))
    for _ in range(rounds):
        for name, side in sides().items():
            with side():
                program()
                began = time.perf_counter()
                for _ in range(repeats):
                    program()
                times[name].append((time.perf_counter() - began) / repeats)
    off = times["off"]
    return {
        name: (statistics.median(own), statistics.median(a / b for a, b in zip(own, off, strict=True)))
        for name, own in times.items()
    }


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("side", ["off", "one frame", "ten frames", "sampled, 512 KiB"])
def bench_a_program(benchmark: Any, program: str, side: str) -> None:
    run = PROGRAMS[program]()
    with sides()[side]():
        benchmark(run)


def looks() -> None:
    """Print the cost of a look at 10,000 live tensors: the end of a pass, and objgraph's."""
    kept = [ds.zeros(10) for _ in range(10)]
    with ds.LeakDetector() as detector:
        kept += [ds.zeros(10) for _ in range(10_000)]
        began = time.perf_counter()
        for _ in range(100):
            detector.mark()
        print(f"{'mark()':<28}{(time.perf_counter() - began) * 1e4:10.1f} us")
    with contextlib.suppress(ImportError):
        import objgraph

        objgraph.growth()
        began = time.perf_counter()
        objgraph.growth()
        print(f"{'objgraph.growth()':<28}{(time.perf_counter() - began) * 1e6:10.1f} us")
    assert len(kept) == 10_010


def million(make: Callable[[], object], count: int = 1_000_000) -> None:
    """Print the bytes of the detector for each live tensor, and the time of a snapshot and a
    report.
    """
    warm = [make() for _ in range(1000)]

    def filled(detector: contextlib.AbstractContextManager[object]) -> tuple[int, list[object]]:
        process = psutil.Process()
        before = process.memory_info().rss
        with detector:
            kept = [make() for _ in range(count)]
        return process.memory_info().rss - before, kept

    gc.disable()
    # The side without a detector needs its own process: the other side would reuse its freed
    # memory.
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, str(filled(contextlib.nullcontext())[0]).encode())
        os._exit(0)
    os.wait()
    plain = int(os.read(reading, 100))
    detector = ds.LeakDetector()
    watched, kept = filled(detector)
    print(f"  {(watched - plain) / count:8.0f} bytes each")
    began = time.process_time()
    snapshot = detector.take_snapshot()
    taken = time.process_time()
    report = snapshot.report()
    print(f"  snapshot {taken - began:6.2f} s, report {time.process_time() - taken:6.2f} s of processor time")
    assert len(snapshot) == len(kept) == count
    assert report.sites
    gc.enable()
    del warm


def main() -> None:
    if "--million" in sys.argv:
        if "--torch" in sys.argv:
            torch = pytest.importorskip("torch")
            print("a million torch.Tensor")
            million(lambda: torch.zeros(1))
        elif "--numpy" in sys.argv:
            print("a million numpy.ndarray")
            million(lambda: np.zeros(1))
        else:
            print("a million ds.Tensor")
            million(lambda: ds.zeros(1))
        return
    for name, make in PROGRAMS.items():
        print(name)
        for side, (seconds, ratio) in compare(make()).items():
            print(f"  {side:<26}{seconds * 1e6:10.1f} us {ratio:8.3f} times")
    looks()


if __name__ == "__main__":
    main()
