"""What memory does a CNN take under ``graph="none"``, and what does ``graph="refuse"`` cost a call?

The CNN is in eval mode. Memory is the growth of the peak of the resident memory while the model
runs, each side in a process of its own, in turns. Calls take turns in one process. Run as a script
it prints medians and ratios.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import timeit
from typing import Any

SIDES = {
    "torch.no_grad()": "torch.no_grad()",
    'graph="none"': 'ds.dispose_scope(graph="none")',
    'graph="keep"': "ds.dispose_scope()",
    "nothing": "contextlib.nullcontext()",
}
PROGRAM = """
import contextlib, torch
import disposescope as ds

torch.set_num_threads(1)
torch.manual_seed(0)
layers = [torch.nn.Conv2d(3, 32, 3, padding=1)]
for _ in range(4):
    layers += [torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3, padding=1)]
model = torch.nn.Sequential(*layers).eval()
# What the package takes when it is first used is there before.
with torch.no_grad(), ds.dispose_scope():
    model(torch.randn(1, 3, 16, 16))
images = torch.randn(16, 3, 128, 128)

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

with open("/proc/self/clear_refs", "w") as reset:
    reset.write("5")
before = peak()
with {side}:
    model(images)
print(peak() - before)
"""


def peaks(rounds: int) -> None:
    """Print the growth of each side, and its ratio to that under ``torch.no_grad()``."""
    found: dict[str, list[int]] = {name: [] for name in SIDES}
    for _ in range(rounds):
        for name, side in SIDES.items():
            code = PROGRAM.replace("{side}", side)
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            found[name].append(int(done.stdout))
    plain = statistics.median(found["torch.no_grad()"])
    for name, sizes in found.items():
        size = statistics.median(sizes)
        print(f"peak of a CNN in eval mode, {name:16} {size / 1000:8.1f} MB  {size / plain:6.3f} times no_grad")


def calls(rounds: int = 100, number: int = 500) -> None:
    """Print what a call takes in a scope with each option."""
    import torch

    import disposescope as ds

    x = torch.ones(4)
    sides: dict[str, Any] = {
        "outside": contextlib.nullcontext,
        'graph="keep"': ds.dispose_scope,
        'graph="none"': lambda: ds.dispose_scope(graph="none"),
        'graph="refuse"': lambda: ds.dispose_scope(graph="refuse"),
    }
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, enter in sides.items():
            with enter():
                found[name].append(timeit.timeit(lambda: x + 1, number=number) / number)
    for name, times in found.items():
        print(f"x + 1, {name:16} {statistics.median(times) * 1e6:6.2f} us")


if __name__ == "__main__":
    peaks(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    calls()
