"""The passes of a training loop, told by the steps of optimizers, and the graphs that reach over several of them.

Each operation of PyTorch that makes a node of a graph has a number, higher than the one before: what the numbers were
at the steps tells between which of them a node was made. Operations of different threads are numbered apart, so where
optimizers step on several threads nothing is told of graphs.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from typing import Any, Final, final

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..scopes.leaks._evidence import STEP
from ..scopes.leaks._watching import mark
from ._graph_guard import guard_release

__all__ = ["STEPS", "Steps"]

_C: Final[Any] = torch._C
_number_now: Final[Any] = getattr(_C._autograd, "_get_sequence_nr", None)
_grad_fn: Final[Any] = _C.TensorBase.grad_fn.__get__
_KEPT: Final = 4096
_NODES: Final = 50_000
_NO_NUMBER: Final = 2**63


@final
class Steps:
    """The steps of all optimizers while a detector is open. The one instance is `STEPS`."""

    __slots__ = ("_counts", "_met", "_numbers", "_stride", "_thread")

    def __init__(self) -> None:
        self._counts = False
        self._forget()

    def hear(self) -> None:
        """Be told of all steps, once for the process: another thread may be going through the hooks at any time."""
        register_optimizer_step_post_hook(self._stepped)

    def begin(self) -> None:
        """Count steps from now on."""
        if not self._counts:
            self._forget()
            self._counts = True

    def end(self) -> None:
        """Count none any more; what was counted stays known."""
        self._counts = False

    def reached(self, tensor: Any) -> int:
        """Between how many different steps the nodes of the graph of a tensor were made; 0 where it has none.

        Of very many steps some are remembered only, and of a very large graph a part is looked at: it is at least as
        many then.
        """
        node = _grad_fn(tensor)
        if self._thread == 0 or len(self._numbers) < 2 or node is None:
            return 0
        nodes: dict[int, Any] = {}
        edges: dict[int, list[int]] = {}
        places: set[int] = set()
        pending = [node]
        while pending and len(nodes) < _NODES:
            node = pending.pop()
            key = id(node)
            if key in nodes:
                continue
            nodes[key] = node
            number = node._sequence_nr()
            if number < _NO_NUMBER:
                places.add(bisect_right(self._numbers, number))
            below = [child for child, _ in node.next_functions if child is not None]
            edges[key] = [id(child) for child in below]
            pending += below
        if pending:
            edges = {key: [child for child in below if child in nodes] for key, below in edges.items()}
        guard_release(nodes, edges)
        return len(places)

    def _forget(self) -> None:
        self._numbers: list[int] = []
        self._stride = 1
        self._met = 0
        self._thread: int | None = None

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not self._counts:
            return
        thread = threading.get_ident()
        if self._thread is None:
            self._thread = thread
        if self._thread != thread:
            self._thread = 0
        if _number_now is not None:
            self._met += 1
            if self._met % self._stride == 0:
                self._numbers.append(_number_now())
                if len(self._numbers) > _KEPT:
                    del self._numbers[::2]
                    self._stride *= 2
        mark(STEP)


STEPS: Final = Steps()
