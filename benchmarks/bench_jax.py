"""What does a scope cost a call of compiled code in JAX, and what do live arrays cost it?

The sides of the first question take turns in one process; those of the second are scopes without
JAX inside, with more and more arrays alive.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import disposescope as ds

CALLS = 200


@jax.jit
def step(weights: Any) -> Any:
    """Return the weights of the next step."""
    return weights * 0.9


def calls() -> float:
    """Return the microseconds of one call, out of `CALLS` that need each other's results."""
    weights = jnp.ones(16)
    step(weights).block_until_ready()
    begun = time.perf_counter()
    for _ in range(CALLS):
        weights = step(weights)
    weights.block_until_ready()
    return (time.perf_counter() - begun) / CALLS * 1e6


def calls_in_a_scope() -> float:
    """Return what `calls` returns, inside of a scope."""
    with ds.dispose_scope():
        return calls()


def empty_scope() -> float:
    """Return the microseconds of a scope in which nothing is born."""
    begun = time.perf_counter()
    with ds.dispose_scope():
        pass
    return (time.perf_counter() - begun) * 1e6


def medians(sides: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Return the median of each side. The sides run in turns; the first round warms up."""
    rows = [{name: side() for name, side in sides.items()} for _ in range(rounds + 1)][1:]
    return {name: statistics.median(row[name] for row in rows) for name in sides}


def main(rounds: int = 101) -> None:
    """Print the medians of both questions."""
    told = medians({"without a scope": calls, "in a scope": calls_in_a_scope}, rounds)
    print(f"a call of compiled code: {told['without a scope']:.2f} us without a scope,", end=" ")
    print(f"{told['in a scope']:.2f} us in one (+{told['in a scope'] - told['without a scope']:.2f} us)")
    alive: list[Any] = []
    before = medians({"scope": empty_scope}, rounds)["scope"]
    print(f"an empty scope: {before:.1f} us with no array alive")
    for count in (1_000, 2_000, 4_000):
        alive += [jnp.full(3, number) for number in range(count - len(alive))]
        now = medians({"scope": empty_scope}, rounds)["scope"]
        print(f"an empty scope: {now:.1f} us with {count:,} arrays alive", end=" ")
        print(f"({(now - before) / 2 / count * 1000:.0f} us for each 1,000 arrays, at each end)")


if __name__ == "__main__":
    main()
