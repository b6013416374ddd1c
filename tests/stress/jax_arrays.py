"""Arrays of JAX, in many threads."""

from __future__ import annotations

import functools
import os
import pickle
import random
from collections.abc import Callable
from typing import Any

# Before it is imported: it writes each of its refusals to the standard error.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

import disposescope as ds

from .run import Run, attempt

OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "+": lambda x: x + 1,
    "*": lambda x: x * x,
    "sum": lambda x: x.sum(),
    "slice": lambda x: x[2:9],
    "reshape": lambda x: x.reshape(4, -1).T,
    "jit": jax.jit(lambda x: x * 3),
}

READS: dict[str, Callable[[Any], Any]] = {
    "asarray": lambda x: np.asarray(x) * 2,
    "array": lambda x: np.array(x),
    "memoryview": lambda x: memoryview(x).shape,
    "from_dlpack": lambda x: np.from_dlpack(x) + 1,
    "tolist": lambda x: x[:3].tolist(),
    "float": lambda x: float(x.max()),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
}
"""What reads the memory itself, which JAX does by bare pointers and without the GIL. Another
thread that deletes the array meanwhile makes it crash (jaxlib 0.10.2, in programs of JAX alone
too): each thread reads arrays of its own.
"""


def sample(scale: int) -> Any:
    return jnp.arange(400, dtype="float32") + scale


def as_numpy(result: Any) -> Any:
    return np.array(result) if isinstance(result, jax.Array) else result


def computed(operation: Callable[[Any], Any], array: Any) -> Any:
    """What an operation gives; no other thread knows the array that is read here."""
    return as_numpy(operation(array))


REFUSALS = ds.DisposedError, ValueError, RuntimeError, BufferError
"""JAX's own, where an array is deleted between its check and its use."""

RESULTS = [
    {name: computed(operation, sample(scale)) for name, operation in {**OPERATIONS, **READS}.items()}
    for scale in range(5)
]


def jax_arrays(run: Run) -> None:
    """Arrays of JAX whose scopes end meanwhile on other threads."""
    board: list[tuple[int, Any] | None] = [None] * run.threads

    def work(number: int, rng: random.Random) -> int:
        for _ in range(2):
            scale = rng.randrange(5)
            with ds.dispose_scope(f"of thread {number}"):
                mine = scale, sample(scale)
                board[number] = mine
                for _ in range(6):
                    for operations, (which, array) in ((OPERATIONS, rng.choice(board) or mine), (READS, mine)):
                        name = rng.choice(list(operations))
                        compute = functools.partial(computed, operations[name], array)
                        attempt(run, name, compute, RESULTS[which][name], (array,), REFUSALS)
        return 24

    run.in_threads(work)
