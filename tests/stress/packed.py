"""Packed sequences, of this library and of PyTorch."""

from __future__ import annotations

import copy
import functools
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np

import disposescope as ds

from .run import Run, Work, attempt, refused, rnn, torch

ROWS = {scale: [np.arange(length * 2.0).reshape(length, 2) + scale for length in (5, 3, 7, 1)] for scale in range(3)}

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "pad": lambda lib, p: lib.pad_packed_sequence(p, batch_first=True),
    "unpack": lambda lib, p: list(lib.unpack_sequence(p)),
    "data": lambda lib, p: p.data + 1,
    "batch_sizes": lambda lib, p: p.batch_sizes.tolist(),
    "fields": lambda lib, p: [field.sum() for field in p],
    "double": lambda lib, p: p.double().data,
    "float": lambda lib, p: p.float().data,
    "replace": lambda lib, p: p._replace(data=p.data * 2).data,
    "deepcopy": lambda lib, p: copy.deepcopy(p).data,
    "pickle": lambda lib, p: pickle.loads(pickle.dumps(p)).data,
}


def pack(scale: int) -> Any:
    return ds.pack_sequence(ROWS[scale], enforce_sorted=False)


def torch_pack(scale: int) -> Any:
    return rnn.pack_sequence([torch.from_numpy(row) * 1 for row in ROWS[scale]], enforce_sorted=False)


def as_arrays(result: Any) -> Any:
    if isinstance(result, (tuple, list)):
        return type(result)(map(as_arrays, result))
    return result.numpy().copy() if isinstance(result, ds.Tensor) else result


RESULTS = [{name: as_arrays(operation(ds, pack(scale))) for name, operation in OPERATIONS.items()} for scale in ROWS]
TORCH_RESULTS = (
    [{name: operation(rnn, torch_pack(scale)) for name, operation in OPERATIONS.items()} for scale in ROWS]
    if torch is not None
    else []
)


def board_work(run: Run, lib: Any, make: Callable[[int], Any], results: list[dict[str, Any]]) -> Work:
    """Return the work of threads that publish packed sequences of their scopes.

    They use, attach, move and dispose those that others have published.
    """
    board: list[tuple[int, Any] | None] = [None] * run.threads
    names = list(OPERATIONS)

    def work(number: int, rng: random.Random) -> int:
        for _ in range(2):
            scale = rng.randrange(3)
            with ds.dispose_scope(f"of thread {number}") as scope:
                board[number % run.threads] = scale, make(scale)
                for _ in range(8):
                    published = board[rng.randrange(run.threads)] or board[number % run.threads]
                    assert published is not None
                    scale, packed = published
                    name, verb = rng.choice(names), rng.random()
                    attempt(
                        run, name, functools.partial(OPERATIONS[name], lib, packed), results[scale][name], (packed,)
                    )
                    if verb < 0.05:
                        refused(functools.partial(scope.attach, packed))
                    elif verb < 0.1:
                        refused(functools.partial(scope.move_to_outer, [packed]))
                    elif verb < 0.15:
                        refused(lambda packed=packed: ds.dispose(packed.data))
        return 16

    return work


def pack_work(run: Run) -> Work:
    return board_work(run, ds, pack, RESULTS)


def torch_pack_work(run: Run) -> Work:
    return board_work(run, ds if run.round % 2 else rnn, torch_pack, TORCH_RESULTS)


def packs(run: Run) -> None:
    """Packed sequences of this library that cross threads."""
    run.in_threads(pack_work(run))


def torch_packs(run: Run) -> None:
    """Packed sequences of PyTorch that cross threads, with its own functions or this library's."""
    run.in_threads(torch_pack_work(run))
