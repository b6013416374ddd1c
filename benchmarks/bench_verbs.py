"""What does a verb on one PyTorch tensor cost with JAX imported, and with 2,000 JAX arrays?

A process cannot forget JAX, so each side is a process of its own. They measure in turns.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

SIDES = {"PyTorch alone": "none", "JAX imported": "imported", "2,000 arrays alive": "alive"}


def worker(jax: str) -> None:
    """Measure each verb once for each line of input, and answer with microseconds by verb."""
    import torch

    import disposescope as ds

    alive: list[Any] = []
    if jax != "none":
        import jax.numpy as jnp

        jnp.ones(3).block_until_ready()
        if jax == "alive":
            alive.extend(jnp.full(3, i) for i in range(2000))

    def measured(verb: Callable[[ds.DisposeScope, torch.Tensor], object]) -> float:
        with ds.dispose_scope(), ds.dispose_scope() as scope:
            tensors = [torch.empty(1) for _ in range(200)]
            begun = time.perf_counter()
            for tensor in tensors:
                verb(scope, tensor)
            return (time.perf_counter() - begun) / len(tensors) * 1e6

    def scope_alone(_scope: ds.DisposeScope, _tensor: torch.Tensor) -> None:
        with ds.dispose_scope():
            pass

    sides: dict[str, Callable[[ds.DisposeScope, torch.Tensor], object]] = {
        "nothing": lambda *_: None,
        "move_to_outer": lambda scope, tensor: scope.move_to_outer(tensor),
        "move_to_outer of a dict": lambda scope, tensor: scope.move_to_outer({"x": tensor}),
        "attach": lambda scope, tensor: scope.attach(tensor),
        "detach": lambda scope, tensor: scope.detach(tensor),
        "dispose": lambda _, tensor: ds.dispose(tensor),
        "owner_of": lambda _, tensor: ds.owner_of(tensor),
        "in": lambda scope, tensor: tensor in scope,
        "an empty scope": scope_alone,
    }
    for _ in sys.stdin:
        print(json.dumps({name: measured(verb) for name, verb in sides.items()}), flush=True)


def main(rounds: int = 50) -> None:
    """Print the medians of the sides, which run in turns, and their ratios to PyTorch alone."""
    workers = {
        side: subprocess.Popen(
            [sys.executable, __file__, jax], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for side, jax in SIDES.items()
    }
    rows: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(rounds + 1):
        for side, process in workers.items():
            assert process.stdin is not None
            assert process.stdout is not None
            print(file=process.stdin, flush=True)
            rows[side].append(json.loads(process.stdout.readline()))
    for process in workers.values():
        process.communicate()
    print(f"{'':>24}", *(f"{side:>24}" for side in SIDES))
    first = next(iter(SIDES))
    for verb in rows[first][0]:
        # The first round warms up.
        times = {side: [row[verb] for row in rows[side][1:]] for side in SIDES}
        cells: list[str] = []
        for side in SIDES:
            ratio = statistics.median(one / alone for one, alone in zip(times[side], times[first], strict=True))
            cells.append(f"{statistics.median(times[side]):8.2f} us {ratio:8.2f} x")
        print(f"{verb:>24}", *(f"{cell:>24}" for cell in cells))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        worker(sys.argv[1])
    else:
        main()
