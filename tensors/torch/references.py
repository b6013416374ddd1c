"""The passes of a training loop, and what PyTorch's tensors and graphs hold, for the search of holders."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final, cast, final

import torch
from torch import Tensor

from ...leaks.detector.watching import mark
from ...leaks.holders.references import Memory, Part, add_framework
from ...leaks.verdicts.growth import STEP
from .disposal import DisposedTorchTensor
from .extension import TORCH_COMPILED
from .graph_walk import ACCUMULATE, guard_release, saved_under
from .storages import storage_of, storages_behind

__all__ = [
    "STEPS",
    "Steps",
    "show_edges",
]


# The passes of a training loop, told by the steps of optimizers, and the graphs that reach over
# several of them.
#
# Each operation of PyTorch that makes a node of a graph has a number, higher than the one before:
# what the numbers were at the steps tells between which of them a node was made. Operations of
# different threads are numbered apart, so where optimizers step on several threads nothing is told
# of graphs.


_C: Final[Any] = torch._C
_number_now: Final[Any] = getattr(_C._autograd, "_get_sequence_nr", None)
_grad_fn_of: Final[Any] = _C.TensorBase.grad_fn.__get__
_KEPT: Final = 4096
_NODES: Final = 50_000
_NO_NUMBER: Final = 2**63


@final
class Steps:
    """The steps of all optimizers while a detector is open. The one instance is `STEPS`."""

    __slots__ = ("_met", "_numbers", "_stride", "_thread")

    def __init__(self) -> None:
        self.begin()

    def reached(self, tensor: Any) -> int:
        """Between how many different steps the nodes of the graph of a tensor were made; 0 where it has none.

        Of very many steps some are remembered only, and of a very large graph a part is looked at:
        it is at least as many then.
        """
        node = _grad_fn_of(tensor)
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

    def begin(self) -> None:
        """Forget what was counted: a detector is opened."""
        self._numbers: list[int] = []
        self._stride = 1
        self._met = 0
        self._thread: int | None = None

    def stepped(self) -> None:
        """Count a step."""
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

# What PyTorch's tensors and the nodes of its graphs hold, for the search of who holds what.


# Past the attributes of subclasses.
_Base: Final[Any] = _C.TensorBase
_grad_fn: Final[Any] = _Base.grad_fn.__get__
_grad: Final[Any] = _Base._grad.__get__
_base: Final[Any] = _Base._base.__get__
_is_leaf: Final[Any] = _Base.is_leaf.__get__
_retains_grad: Final[Any] = _Base.retains_grad.__get__
_hooks: Final[Any] = _Base._backward_hooks.__get__
_layout: Final[Any] = _Base.layout.__get__
_no_dispatch: Final[Any] = cast("Any", Tensor).__torch_dispatch__
_RAW: Final = "_raw_saved_"


alone: Final[Callable[[Any], Hashable | None]] = TORCH_COMPILED.identity_if_alone
"""See `Framework.alone`: most tensors that a program has a million of are such."""


@final
class TorchEdges:
    """The one instance is among the frameworks."""

    __slots__ = ("_asked", "_names")

    _names: dict[type, list[str]]
    _asked: dict[type, bool]

    def __init__(self) -> None:
        self._names = {}
        self._asked = {}

    def quiet(self) -> AbstractContextManager[object]:
        """See `Framework.quiet`."""
        stack = ExitStack()
        stack.enter_context(_C.DisableTorchFunction())
        stack.enter_context(torch.no_grad())
        return stack

    def part(self, cls: type) -> Part | None:
        """See `Framework.part`."""
        if _is_tensor(cls):
            return None if cls is DisposedTorchTensor else "tensor"
        if issubclass(cls, _C._FunctionBase):
            return "node"
        names: Any = cast("Any", cls).__dict__
        # The types of nodes written in C++ have no base of their own.
        return "node" if "next_functions" in names and "_input_metadata" in names else None

    def edges(self, thing: Any) -> list[tuple[str, object]]:
        """See `Framework.edges`."""
        if _is_tensor(type(thing)):
            found: list[tuple[str, object]] = [
                (".grad_fn", _grad_fn(thing)),
                ("._base", _base(thing)),
                ("._backward_hooks", _hooks(thing)),
            ]
            if _is_leaf(thing) or _retains_grad(thing):
                # That of others is asked for with a warning.
                found.append((".grad", _grad(thing)))
            return [edge for edge in found if edge[1] is not None]
        following: Any = thing.next_functions or ()
        edges: list[tuple[str, object]] = [
            (f".next_functions[{index}][0]", node) for index, (node, _) in enumerate(following) if node is not None
        ]
        if not following and thing.name() == ACCUMULATE:
            edges.append((".variable", thing.variable))
        return edges

    def memory(self, thing: Any) -> list[Memory]:
        """See `Framework.memory`."""
        cls: Any = type(thing)  # pyright: ignore[reportUnknownVariableType] (from Any)
        if _is_tensor(cls):
            return self._of_tensor(thing, cls)
        names = self._names.get(cls)
        if names is None:
            names = self._names[cls] = [name for name in dir(cls) if name.startswith(_RAW)]
        return [
            Memory(f"._saved_{name.removeprefix(_RAW)}", identity, nbytes)
            for name in names
            for tensor in saved_under(thing, name)
            for identity, nbytes in storages_behind(tensor)
        ]

    def alone(self, tensor: Any) -> Hashable | None:
        """See `Framework.alone`."""
        return alone(tensor)

    def passes(self, tensor: Any) -> int:
        """See `Framework.passes`."""
        return STEPS.reached(tensor)

    def walked(self, nodes: dict[int, Any], edges: dict[int, list[int]]) -> None:
        """See `Framework.walked`."""
        guard_release(nodes, edges)

    def _of_tensor(self, tensor: Any, cls: Any) -> list[Memory]:
        if cls is not Tensor:
            # A subclass that handles operators itself would be asked for sizes: what it holds are
            # attributes.
            asked = self._asked.get(cls)
            if asked is None:
                asked = self._asked[cls] = cls.__torch_dispatch__ is not _no_dispatch
            if asked:
                return []
        if _layout(tensor) is not torch.strided:
            return [Memory("", identity, nbytes) for identity, nbytes in storages_behind(tensor)]
        storage = storage_of(tensor)
        if storage is None:
            return []
        nbytes = _Base.numel(tensor) * _Base.element_size(tensor)
        found = [Memory("", ("torch", storage._cdata), nbytes)]
        if not storage.resizable() and storage.device.type == "cpu":
            # PyTorch has not allocated it: it may be the block of an array.
            found.append(Memory("", storage.data_ptr(), nbytes))
        return found


def _is_tensor(cls: Any) -> bool:
    # A function, so that type checkers do not take what follows for unreachable.
    return issubclass(cls, Tensor)


def show_edges() -> None:
    """Let searches for holders see through PyTorch's objects."""
    add_framework(TorchEdges())
