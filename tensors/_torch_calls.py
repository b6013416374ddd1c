"""Seeing what calls of PyTorch return, on every thread, without a mode on any stack.

Python calls a compiled function by an entry of a table. While a leak detector is open, the entries of the functions and
methods of PyTorch that return tensors lead through the compiled part, which learns what they returned; operators that
were looked up by name (``torch.ops``) have no entry, and are seen by the class that calls them. Where there is no
compiled part, or PyTorch is another than it knows, a mode sees the calls of each thread: see `_torch_sightings`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from types import BuiltinFunctionType, ClassMethodDescriptorType, GetSetDescriptorType, MethodDescriptorType
from typing import Any, Final, final

import torch

from ._torch_extension import TORCH_HOT, TORCH_WATCH
from ._torch_modes import WATCHES

__all__ = ["CALLS", "Calls"]

_C: Final[Any] = torch._C
_ops: Final[Any] = import_module("torch._ops")
_base: Final[Any] = _C.TensorBase.__dict__
_MODULES: Final = ("_fft", "_linalg", "_nested", "_nn", "_sparse", "_special")
# Not those that are read at every step: of what is assigned to a gradient `_torch_results.give_up` hears.
_ATTRIBUTES: Final = ("_backward_hooks",)
_FUNCTIONS: Final = (BuiltinFunctionType, ClassMethodDescriptorType, MethodDescriptorType)
# What hands out memory of an array, or of something else; what is asked of a tensor that was returned; and what
# makes an object for another that is there.
_LEFT_OUT: Final = frozenset({"__new__", "from_numpy", "frombuffer", "numpy", "untyped_storage"})
# What returns no tensor, and so do those whose names ask a question.
_TELLS: Final = frozenset(
    {
        "__bool__", "__complex__", "__contains__", "__float__", "__index__", "__int__", "__len__", "allclose",
        "backward", "data_ptr", "dense_dim", "dim", "element_size", "equal", "get_device", "item", "ndimension",
        "nelement", "numel", "register_hook", "retain_grad", "size", "sparse_dim", "storage_offset", "stride",
        "tolist",
    }
)  # fmt: skip
_QUESTIONS: Final = ("is_", "has_", "_is_")
# What gives views of memory that is there.
_VIEWS: Final = frozenset(
    {
        "adjoint", "alias", "as_strided", "broadcast_to", "chunk", "detach", "diagonal", "dsplit", "expand",
        "expand_as", "hsplit", "moveaxis", "movedim", "narrow", "permute", "select", "split", "split_with_sizes",
        "squeeze", "swapaxes", "swapdims", "t", "tensor_split", "transpose", "unbind", "unflatten", "unfold",
        "unsqueeze", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes", "view", "view_as",
        "view_as_complex", "view_as_real", "vsplit",
    }
)  # fmt: skip
_OF_CLASSES: Final = ("_make", "_dtensor")
# Operators, by the names of the functions behind them.
_OPERATORS: Final = {"radd": "add", "rmul": "mul", "truediv": "div", "mod": "remainder", "rmatmul": "matmul"}
_SAME: Final = frozenset(
    {"abs", "add", "div", "eq", "ge", "gt", "le", "lt", "matmul", "mul", "ne", "neg", "pow", "sub"}
)


def _name_of(function: Any) -> str | None:
    """What a function is called in a report; None for one that gives views alone, and makes no memory."""
    name: str = function.__name__
    if name in _VIEWS:
        return None
    bare = name.strip("_") if name.startswith("__") and name.endswith("__") else ""
    return _OPERATORS.get(bare, bare) if bare in _OPERATORS or bare in _SAME else name


def _functions() -> Iterator[Any]:
    """The functions and methods of PyTorch that return tensors, and some that do not."""
    # The second is a class of functions, which are no methods of it.
    for holder in (_C.TensorBase, _C._VariableFunctionsClass, *(getattr(_C, name) for name in _MODULES)):
        yield from _functions_in(holder.__dict__)
    yield _C._FunctionBase.__dict__["apply"]
    yield _C._ImperativeEngine.__dict__["run_backward"]


def _functions_in(names: dict[str, Any]) -> Iterator[Any]:
    for name, found in names.items():
        function: Any = found.__func__ if isinstance(found, staticmethod) else found
        if (
            isinstance(function, _FUNCTIONS)
            and name not in _LEFT_OUT
            and name not in _TELLS
            and not name.startswith((*_OF_CLASSES, *_QUESTIONS))
        ):
            yield function


def _attributes(names: Iterable[str]) -> list[Any]:
    found: list[Any] = [_base[name] for name in names]
    return [one for one in found if isinstance(one, GetSetDescriptorType)]


@final
class Calls:
    """The calls of PyTorch while a detector is open. The one instance is `CALLS`."""

    __slots__ = ("_called", "is_possible")

    def __init__(self) -> None:
        self.is_possible = False
        self._called: list[tuple[Any, Any, Any]] = []

    def find(
        self,
        others: Callable[[Any, Any, Any, Any, Any], object],
        moved: Callable[[Any, Any, Any, Any, Any], object],
        assigned: Callable[[str, Any, Any], object],
    ) -> None:
        """Get to know the functions of this PyTorch, once in a process.

        Parameters
        ----------
        others : callable
            Told of a result that has other tensors in it than PyTorch's own: the result, what was called, what it was
            bound to, its arguments and those by keyword.
        moved : callable
            Told of a tensor that was given other memory, likewise.
        assigned : callable
            Told of what is assigned to an attribute: its name, the tensor, the value.
        """
        if TORCH_HOT is None or TORCH_WATCH is None:
            return
        try:
            functions = [(function, _name_of(function)) for function in _functions()]
            attributes = _attributes(_ATTRIBUTES)
            items: Any = _base["__getitem__"]
            constructors = [_C.TensorBase, *torch._tensor_classes]
            operators = [(cls, cls.__call__) for cls in (_ops.OpOverload, _ops.OpOverloadPacket)]
        except (AttributeError, KeyError):
            return
        if len(attributes) == len(_ATTRIBUTES):
            self.is_possible = TORCH_WATCH.find_calls(
                TORCH_HOT.api, functions, attributes, items, constructors, others, moved, assigned
            )
            if self.is_possible:
                self._called = [(cls, theirs, TORCH_WATCH.operator_method(cls, theirs)) for cls, theirs in operators]

    def begin(self) -> bool:
        """See what they return from now on, on every thread; tells whether that is possible here."""
        if self.is_possible and not WATCHES:
            WATCHES.append(self)
            TORCH_WATCH.watch_calls(True)
            for cls, theirs, ours in self._called:
                if cls.__call__ is theirs:
                    cls.__call__ = ours
        return self.is_possible

    def end(self) -> None:
        """See no more of them."""
        if WATCHES:
            WATCHES.clear()
            TORCH_WATCH.watch_calls(False)
            for cls, theirs, ours in self._called:
                if cls.__call__ is ours:
                    cls.__call__ = theirs


CALLS: Final = Calls()
