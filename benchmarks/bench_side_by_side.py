"""What do scopes and the leak detector cost and save, beside plain code, tracemalloc and memray?

``python benchmarks/bench_side_by_side.py`` measures all of it in one run and writes every sample to
``benchmarks/results/side_by_side.json``; ``python benchmarks/draw_side_by_side.py`` writes the
tables and plots of README.md and docs/benchmarks.md from that file. A round of a program is a
process that forks once for each side. The sides follow each other in each round, so that other load
meets all of them, and another one is the first in each.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "side_by_side.json"

TOOLS = ("plain", "scope", "detector", "tracemalloc", "memray")
PROGRAMS: dict[str, tuple[str, ...]] = {
    "NumPy chain, 1 MiB": ("plain", "scope", "out="),
    "NumPy chain, 64 MiB": ("plain", "scope", "out="),
    "small NumPy arrays": TOOLS,
    "training step": TOOLS,
    "loop that keeps its losses": ("plain", "scope", "mended"),
}
NEED_TORCH = ("loop that keeps its losses", "training step")


def main() -> None:
    """Measure all programs, or be one round of one of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--round", nargs=2, metavar=("PROGRAM", "N"), help="be one round")
    options = parser.parse_args()
    if options.round:
        be_a_round(options.round[0], int(options.round[1]))
        return
    samples: list[str] = []
    load = [os.getloadavg()[0]]
    for program in PROGRAMS:
        for number in range(options.rounds):
            command = [sys.executable, __file__, "--round", program, str(number)]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
            samples += done.stdout.splitlines()
        load.append(os.getloadavg()[0])
        print(f"{program}: done", file=sys.stderr)
    machine = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "niceness": os.nice(0),
        "load_averages": [round(value, 1) for value in load],
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("numpy", "torch", "memray")},
    }
    rows = ",\n".join(samples)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(f'{{"machine": {json.dumps(machine, indent=1)},\n"samples": [\n{rows}\n]}}\n')


def be_a_round(program: str, number: int) -> None:
    """Fork for each side, and print its sample as a line."""
    if program in NEED_TORCH:
        import torch  # noqa: F401 (imported for the forks, which then need not import it)
    sides = PROGRAMS[program]
    first = number % len(sides)
    for side in sides[first:] + sides[:first]:
        child = os.fork()
        if child == 0:
            row = {"program": program, "side": side, "round": number, **sample(program, side)}
            print(json.dumps(row), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            sys.exit(f"{program}, {side}: failed")


def processor() -> str:
    """Return the name of the processor, as Linux knows it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(": ")[2]
    return platform.processor()


def sample(program: str, side: str) -> dict[str, Any]:
    """Run a side of a program; return its processor time per step, or its growth of memory.

    The time is ``seconds``. The growth, ``nbytes`` of resident memory, is returned for the loop
    that keeps its losses.
    """
    if program.startswith("NumPy chain"):
        return chain(side, 1 << 20 if "1 MiB" in program else 64 << 20)
    if program == "loop that keeps its losses":
        return keeping(side)
    step = training_step() if program == "training step" else small_arrays
    return {"seconds": timed(step, side, steps=60 if program == "training step" else 200)}


def timed(step: Callable[[], object], side: str, steps: int) -> float:
    """Return the processor time of a step under a tool, in seconds."""
    import disposescope as ds

    scope: Callable[[], Any] = ds.dispose_scope if side == "scope" else contextlib.nullcontext
    with tool(side):
        for index in range(steps + steps // 4):
            if index == steps // 4:
                start = time.process_time()
            with scope():
                step()
        return (time.process_time() - start) / steps


@contextlib.contextmanager
def tool(side: str) -> Iterator[None]:
    """Open a tool as its documentation says for a first look."""
    if side == "detector":
        import disposescope as ds

        with ds.LeakDetector():
            yield
    elif side == "tracemalloc":
        tracemalloc.start()
        yield
        tracemalloc.stop()
    elif side == "memray":
        import memray

        with tempfile.TemporaryDirectory() as folder, memray.Tracker(Path(folder, "memray.bin")):
            yield
    else:
        yield


def training_step() -> Callable[[], object]:
    """Return a training step of a transformer block."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    optimizer = torch.optim.Adam(model.parameters())
    batch = torch.randn(8, 16, 64)

    def step() -> None:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def small_arrays() -> None:
    """Make a hundred arrays of 8 kB, one after another."""
    import numpy as np

    for _ in range(100):
        np.ones(1000)


def chain(side: str, nbytes: int) -> dict[str, Any]:
    """Evaluate ``(a * 2 + b - 1) / 3`` in float32."""
    import numpy as np

    import disposescope as ds

    a, b = (np.full(nbytes // 4, value, "float32") for value in (1.0, 2.0))
    t = np.empty_like(a)

    def plain() -> Any:
        return (a * 2 + b - 1) / 3

    def by_hand() -> Any:
        np.multiply(a, 2, out=t)
        np.add(t, b, out=t)
        np.subtract(t, 1, out=t)
        return np.divide(t, 3, out=t)

    steps = max(10, (256 << 20) // nbytes)
    with ds.dispose_scope() if side == "scope" else contextlib.nullcontext():
        function = by_hand if side == "out=" else plain
        assert function()[0] == 1.0
        for _ in range(steps // 4):
            function()
        start = time.process_time()
        for _ in range(steps):
            function()
        return {"seconds": (time.process_time() - start) / steps}


def keeping(side: str) -> dict[str, Any]:
    """Run 100 steps of the loop of docs/examples/growing_loop.py, after 10 that do not count.

    Return how many bytes resident memory has grown by.
    """
    import psutil
    import torch
    from torch import nn

    import disposescope as ds

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    validation = torch.randn(256, 512)
    losses = []
    scope: Callable[[], Any] = ds.dispose_scope if side == "scope" else contextlib.nullcontext
    process = psutil.Process()
    before = 0
    for index in range(110):
        if index == 10:
            before = process.memory_info().rss
        with scope():
            batch = torch.randn(256, 512)
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            kept = model(validation).square().mean()
            losses.append(kept.item() if side == "mended" else kept)
    return {"nbytes": process.memory_info().rss - before}


if __name__ == "__main__":
    main()
