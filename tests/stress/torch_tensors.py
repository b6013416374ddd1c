"""PyTorch's tensors, in many threads."""

from __future__ import annotations

import contextlib
import copy
import functools
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np

import disposescope as ds

from .run import Run, Work, attempt, refused, torch

SIZES = 64, 4096, 60_000
SCALES = 1, 2, 3


class Sample:
    """Tensors of a size, whose contents depend on a number; no operation below changes them."""

    __slots__ = ("graph", "indices", "leaf", "matrix", "out", "values")

    def __init__(self, size: int, scale: int) -> None:
        side = int(size**0.5)
        self.values = torch.arange(size, dtype=torch.float32) % 97 * 0.01 + scale
        self.matrix = self.values[: side * side].view(side, side).clone()
        self.indices = torch.arange(0, size, 3)
        self.leaf = self.values.clone().requires_grad_()
        self.graph = (self.leaf * 2).sin()
        self.out = torch.exp(self.values)

    def tensors(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)


def backward(s: Sample) -> Any:
    own = s.matrix.detach().clone().requires_grad_()
    (own * s.matrix).sum().backward()
    return own.grad


def set_item(s: Sample) -> Any:
    s.values[2:5] = s.values[2:5].clone()
    return s.values


OPERATIONS: dict[str, Callable[[Sample], Any]] = {
    # of one tensor, and of two
    "exp": lambda s: s.values.exp(),
    "neg": lambda s: -s.values,
    "torch.sqrt": lambda s: torch.sqrt(s.values),
    "softmax": lambda s: s.matrix.softmax(0),
    "+ number": lambda s: s.values + 1,
    "number -": lambda s: 1 - s.values,
    "*": lambda s: s.values * s.values,
    "/": lambda s: s.values / s.out,
    "**": lambda s: s.values**2,
    "<": lambda s: s.values < s.out,
    "where": lambda s: torch.where(s.values > 2, s.values, s.out),
    "addcmul": lambda s: torch.addcmul(s.values, s.values, s.out),
    # in place, and out=
    "mul_": lambda s: s.values.mul_(1),
    "+=": lambda s: s.values.__iadd__(0),
    "clamp_": lambda s: s.values.clamp_(min=-100),
    "copy_": lambda s: s.values.copy_(s.values.clone()),
    "setitem": set_item,
    "index_copy_": lambda s: s.values.index_copy_(0, s.indices, s.values[s.indices]),
    "out=": lambda s: torch.exp(s.values, out=s.out),
    # views
    "view": lambda s: s.values.view(-1, 4)[:, 1],
    "t": lambda s: s.matrix.t().contiguous(),
    "chunk": lambda s: s.values.chunk(4),
    "expand": lambda s: s.values[:8].expand(3, 8).clone(),
    "unfold": lambda s: s.values[:64].unfold(0, 8, 4).sum(1),
    # reductions
    "sum": lambda s: s.matrix.sum(0),
    "mean": lambda s: s.values.mean(),
    "max": lambda s: tuple(s.matrix.max(1)),
    "argmax": lambda s: s.values.argmax(),
    "cumsum": lambda s: s.values.cumsum(0),
    "std": lambda s: s.matrix.std(),
    "sort": lambda s: s.values.sort().values,
    # products
    "matmul": lambda s: s.matrix @ s.matrix,
    "mv": lambda s: s.matrix.mv(s.matrix[0]),
    "einsum": lambda s: torch.einsum("ij,kj->ik", s.matrix, s.matrix),
    "linear": lambda s: torch.nn.functional.linear(s.matrix, s.matrix, s.matrix[0]),
    # joining and indexing
    "cat": lambda s: torch.cat([s.values, s.out, s.values]),
    "stack": lambda s: torch.stack([s.values, s.out]),
    "slice": lambda s: s.values[3:50:2],
    "take": lambda s: s.values[s.indices],
    "mask": lambda s: s.values[s.values > 2],
    "gather": lambda s: s.values.gather(0, s.indices),
    # conversions
    "double": lambda s: s.values.double(),
    "to": lambda s: s.values.to(torch.float16),
    "numpy": lambda s: s.values.numpy().copy(),
    "asarray": lambda s: np.asarray(s.values) + 1,
    "tolist": lambda s: s.values[:10].tolist(),
    "float": lambda s: float(s.values.max()),
    "iteration": lambda s: [float(value) for value in s.values[:4]],
    "from_dlpack": lambda s: torch.from_dlpack(s.values).clone(),
    "pickle": lambda s: pickle.loads(pickle.dumps(s.values)),
    "deepcopy": lambda s: copy.deepcopy(s.values),
    # autograd
    "grad": lambda s: torch.autograd.grad((s.leaf**2).sum(), s.leaf)[0],
    "grad of a shared graph": lambda s: torch.autograd.grad(s.graph.sum(), s.leaf, retain_graph=True)[0],
    "backward": backward,
    "no_grad": lambda s: torch.no_grad()(lambda: s.leaf * 2)(),
}


RESULTS: dict[tuple[int, int], dict[str, Any]] = {}
"""What each operation gives, by size and number, computed outside of every scope."""
if torch is not None:
    for size in SIZES:
        for scale in SCALES:
            RESULTS[size, scale] = {name: operation(Sample(size, scale)) for name, operation in OPERATIONS.items()}


def torch_work(run: Run) -> Work:
    """Threads that publish tensors of their scopes, and compute with those of the others."""
    board: list[tuple[int, int, Sample] | None] = [None] * run.threads
    names = list(OPERATIONS)

    def work(number: int, rng: random.Random) -> int:
        for _ in range(2):
            size, scale = rng.choice(SIZES), rng.choice(SCALES)
            with ds.dispose_scope(f"of thread {number}") as scope:
                board[number % run.threads] = size, scale, Sample(size, scale)
                for _ in range(8):
                    published = board[rng.randrange(run.threads)] or board[number % run.threads]
                    assert published is not None
                    size, scale, sample = published
                    name, verb, inner = rng.choice(names), rng.random(), rng.random() < 0.5
                    with ds.dispose_scope() if inner else contextlib.nullcontext():
                        compute = functools.partial(OPERATIONS[name], sample)
                        attempt(run, name, compute, RESULTS[size, scale][name], sample.tensors())
                    if verb < 0.03:
                        refused(lambda sample=sample: scope.attach(sample.matrix))
                    elif verb < 0.06:
                        ds.dispose([sample.values, sample.out])
                    elif verb < 0.09:
                        scope.move_to_outer(sample.indices)
        return 16

    return work


def torch_tensors(run: Run) -> None:
    """Operations on tensors of scopes that end meanwhile on other threads."""
    run.in_threads(torch_work(run))
