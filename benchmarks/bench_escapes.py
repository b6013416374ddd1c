"""What does leaving a scope with ten tensors cost, by the option ``escapes`` and by their holders?

The sides run in turns, in one process, and those under "raise" after all others: they open a leak
detector, which looks at every object of the process and leaves nothing in the processor's caches.
"An empty scope" is entering and leaving, the others are leaving alone. ``--alive`` says how many
unrelated objects there are.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import disposescope as ds
from disposescope.scopes.base.options import EscapesOption

OPTIONS: tuple[EscapesOption, ...] = ("dispose", "keep", "raise")


class Model(torch.nn.Module):
    """A module that keeps a list."""

    outputs: list[torch.Tensor]


model = Model()


def _left(scope: Any) -> float:
    begun = time.perf_counter()
    with contextlib.suppress(ds.EscapedError):
        scope.__exit__(None, None, None)
    return time.perf_counter() - begun


def an_empty_scope(escapes: EscapesOption) -> float:
    """Enter and leave a scope."""
    begun = time.perf_counter()
    with ds.dispose_scope(escapes=escapes):
        pass
    return time.perf_counter() - begun


def variables(escapes: EscapesOption) -> float:
    """Leave ten tensors to variables of the block."""
    scope: Any = ds.dispose_scope(escapes=escapes)
    scope.__enter__()
    a, b, c, d, e = (torch.empty(1) for _ in range(5))
    f, g, h, i, j = (torch.empty(1) for _ in range(5))
    spent = _left(scope)
    del a, b, c, d, e, f, g, h, i, j
    return spent


def a_list(escapes: EscapesOption) -> float:
    """Leave ten tensors to a list."""
    held: list[torch.Tensor] = []
    scope: Any = ds.dispose_scope(escapes=escapes)
    scope.__enter__()
    for _ in range(10):
        held.append(torch.empty(1))
    return _left(scope)


def a_module(escapes: EscapesOption) -> float:
    """Leave ten tensors to a module."""
    model.outputs = []
    scope: Any = ds.dispose_scope(escapes=escapes)
    scope.__enter__()
    for _ in range(10):
        model.outputs.append(torch.empty(1))
    return _left(scope)


SIDES: dict[str, Callable[[EscapesOption], float]] = {
    "an empty scope": an_empty_scope,
    "variables": variables,
    "a list": a_list,
    "a module": a_module,
}


def main(rounds: int = 300) -> None:
    """Print the medians, and the tenth and the ninetieth percentile, in microseconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--alive", type=int, default=0)
    arguments = parser.parse_args()
    unrelated = [[number] for number in range(arguments.alive)]
    # No lists: a scope that looks for holders would look through them.
    times = {(side, option): array.array("d") for side in SIDES for option in OPTIONS}
    for in_turns in (OPTIONS[:2], OPTIONS[2:]):
        for _ in range(arguments.rounds):
            for side in SIDES:
                for option in in_turns:
                    with ds.dispose_scope():
                        times[side, option].append(SIDES[side](option) * 1e6)
    print(f"{len(unrelated):,} unrelated objects")
    print(f"{'':>16}", *(f"{option:>24}" for option in OPTIONS))
    for side in SIDES:
        cells: list[str] = []
        for option in OPTIONS:
            tenths = statistics.quantiles(times[side, option], n=10)
            cells.append(f"{statistics.median(times[side, option]):8.1f} ({tenths[0]:.1f} to {tenths[-1]:.1f})")
        print(f"{side:>16}", *(f"{cell:>24}" for cell in cells))


if __name__ == "__main__":
    main()
