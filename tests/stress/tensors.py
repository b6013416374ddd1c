"""Tensors of this library, and every verb."""

from __future__ import annotations

import functools
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np

import disposescope as ds

from .run import Run, Work, attempt, refused

OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "+": lambda t: t + 1,
    "*": lambda t: t * t,
    "-": lambda t: -t,
    "sum": lambda t: t.sum(),
    "mean": lambda t: t.reshape(-1, 4).mean(axis=1),
    "slice": lambda t: t[1:30:3],
    "mask": lambda t: t[t > 3],
    "np.exp": lambda t: np.exp(t / 100),
    "matmul": lambda t: t.reshape(4, -1) @ t.reshape(-1, 4),
    "concatenate": lambda t: np.concatenate([t, t]),
    "astype": lambda t: t.astype("float32"),
    "asarray": lambda t: np.asarray(t) * 2,
    "copy": lambda t: t.copy(),
    "tolist": lambda t: t[:5].tolist(),
    "pickle": lambda t: pickle.loads(pickle.dumps(t)),
    "iteration": lambda t: [float(x) for x in t[:3]],
    "len": lambda t: len(t),
}


RESULTS = [{name: operation(np.arange(400.0) + scale) for name, operation in OPERATIONS.items()} for scale in range(5)]
"""What NumPy gives for the same arrays."""


def tensor_work(run: Run) -> Work:
    """Return the work of threads that publish Tensors and their scopes.

    They compute with those of the others, and attach, move and dispose them.
    """
    board: list[tuple[int, Any, Any] | None] = [None] * run.threads
    names = list(OPERATIONS)

    def verb(rng: random.Random, scope: Any, other: Any, tensor: Any) -> None:
        shut = ds.ScopeClosedError
        match rng.randrange(12):
            case 0:
                ds.dispose(tensor)
            case 1:
                refused(lambda: scope.attach(tensor), shut)
            case 2:
                refused(lambda: other.move_to(scope, tensor), shut)
            case 3:
                refused(lambda: other.move_to_outer([tensor]), shut)
            case 4:
                refused(lambda: scope.detach({"a": tensor}), shut)
            case 5:
                refused(lambda: (len(other), other.live, other.nbytes), shut)
            case 6:
                refused(lambda: ds.owner_of(tensor) in (None, scope, other) and tensor in other)
            case 7:
                refused(lambda: other.dispose_everything_but(tensor), shut)
            case 8 if rng.random() < 0.3:
                other.close()

    def work(number: int, rng: random.Random) -> int:
        for _ in range(3):
            scale = rng.randrange(5)
            with ds.dispose_scope(f"of thread {number}") as scope:
                board[number % run.threads] = scale, scope, ds.arange(400.0) + scale
                for _ in range(12):
                    published = board[rng.randrange(run.threads)] or board[number % run.threads]
                    assert published is not None
                    scale, other, tensor = published
                    name = rng.choice(names)
                    compute = functools.partial(OPERATIONS[name], tensor)
                    # In a scope that no other thread knows: the results are nobody else's to
                    # dispose.
                    with ds.dispose_scope():
                        attempt(run, name, compute, RESULTS[scale][name], (tensor,))
                    verb(rng, scope, other, tensor)
        return 72

    return work


def tensors(run: Run) -> None:
    """Tensors that several threads compute with, dispose, move and attach."""
    run.in_threads(tensor_work(run))
