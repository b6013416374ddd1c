"""Dropping a handle: the Python object of a tensor goes dead, and what others hold of it stays right.

``torch._C._swap_tensor_impl`` (what the public ``torch.utils.swap_tensors`` ends in) gives the implementation, which a
graph or a view may hold, to a fresh object, and the fresh object's implementation to the tensor: that one is a husk,
which refuses on every path. Python code meets the class `DisposedTorchTensor`, whose attributes raise; functions of
PyTorch meet its ``__torch_function__``; code that skips this (``torch._C.DisableTorchFunctionSubclass``, TorchScript,
C++ operators) meets the Python dispatch key of the husk, and with it ``__torch_dispatch__``; and C++ that reads memory
meets a sparse meta tensor, which has none to be read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from ..scopes._errors import DisposedError, DisposeScopeError
from ..scopes._kinds import kind_of_type
from ..scopes._releases import disposed_error
from ._torch_extension import TORCH_HOT

__all__ = ["PINNED", "DisposedTorchTensor", "Spare", "can_be_disposed", "drop", "drop_pinned", "last_known"]

# Bound once: these stand on the path of every disposal.
_C: Final[Any] = torch._C
_make: Final = Tensor._make_subclass
_swap: Final[Callable[[Tensor, Tensor], None]] = _C._swap_tensor_impl
_modes_are_on: Final[Callable[[], bool]] = _C._is_torch_function_mode_enabled
_Undisturbed: Final[Any] = _C.DisableTorchFunction

_KNOWN: Final = "_disposescope_last_known"

# What may still be asked of a disposed tensor: what the interpreter and PyTorch need in order to refuse it.
_ALLOWED: Final = frozenset(
    {
        "__class__",
        "__del__",
        "__dir__",
        "__doc__",
        "__getattribute__",
        "__hash__",
        "__init__",
        "__init_subclass__",
        "__module__",
        "__new__",
        "__repr__",
        "__sizeof__",
        "__slots__",
        "__subclasshook__",
        "__torch_dispatch__",
        "__torch_function__",
        "__weakref__",
    }
)
# Asked of anything by ``isinstance(thing, torch.nn.Parameter)``, with a default: absent, not refused.
_QUESTIONS: Final = frozenset({"_is_param", "_is_buffer"})


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise _refusal(self)

    refuse.__name__ = name
    return refuse


def _refuse_attribute(self: Any, name: str) -> Any:
    if name in _ALLOWED:
        return object.__getattribute__(self, name)
    if name in _QUESTIONS:
        raise AttributeError(name)
    raise _refusal(self)


def _refuse_function(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
    raise _refusal(_first_dead((args, kwargs)))


def _represent(self: Any) -> str:
    return f"<disposed {last_known(self)}>"


class Spare(Tensor):
    """What a husk is made as: the class says that the dispatcher shall ask Python, and lets itself be changed."""

    __torch_dispatch__ = classmethod(_refuse_function)  # type: ignore[assignment]  # which PyTorch says it is; its stub does not


_body: dict[str, Any] = {
    name: _refusing(name)
    for name in dir(Tensor)
    if name.startswith("__") and name not in _ALLOWED and name not in {"__dict__"} and callable(getattr(Tensor, name))
}
_body.update(
    {
        "__module__": __name__,
        "__doc__": "What a disposed ``torch.Tensor`` is: every use but ``repr`` and ``hash`` raises `DisposedError`.",
        "__torch_function__": classmethod(_refuse_function),
        "__torch_dispatch__": classmethod(_refuse_function),
        "__getattribute__": _refuse_attribute,
        "__setattr__": _refusing("__setattr__"),
        "__delattr__": _refusing("__delattr__"),
        "__repr__": _represent,
        "__hash__": object.__hash__,
    }
)
DisposedTorchTensor: Final[type[Tensor]] = type("DisposedTorchTensor", (Tensor,), _body)

# A sparse implementation has no storage, a meta one no kernels that would read it, and one without dimensions no size.
with _Undisturbed():
    _HUSK: Final = torch.empty((), layout=torch.sparse_coo, device="meta")


def can_be_disposed(cls: type) -> bool:
    """Whether the instances of a tensor class can go dead: one with slots of its own cannot change its class."""
    return cls is Tensor or (
        cls is not DisposedTorchTensor
        and cls.__basicsize__ == DisposedTorchTensor.__basicsize__
        and cls.__dictoffset__ == DisposedTorchTensor.__dictoffset__
        and cls.__weakrefoffset__ == DisposedTorchTensor.__weakrefoffset__
    )


def drop_in_python(tensor: Any, /) -> None:
    """Make a handle dead. Its storage is freed where nobody else has it.

    Raises
    ------
    DisposeScopeError
        The instances of its class cannot go dead. The tensor is left as it is.
    """
    cls: Any = type(tensor)  # pyright: ignore[reportUnknownVariableType] (from Any)
    if cls is not Tensor:
        if cls is DisposedTorchTensor:
            return
        if not can_be_disposed(cls):
            raise DisposeScopeError(
                f"a {cls.__module__}.{cls.__qualname__} cannot be disposed: its class has slots of its own; "
                "it is left as it is, and lives by reference count"
            )
    known: _Known
    if cls is Tensor and not _modes_are_on():
        try:
            known = cls, tensor.shape, tensor.dtype
        except RuntimeError:
            known = _metadata(tensor, cls)
    else:
        with _Undisturbed():
            known = _metadata(tensor, cls)
    record = _records.get(known) or _record_of(known)
    spare: Any = _make(Spare, _HUSK)
    try:
        _swap(tensor, spare)
    except RuntimeError:
        _drop_referenced(tensor, spare, record)
        return
    # A graph that holds the implementation finds the spare from now on, which must be what the tensor was.
    spare.__class__ = cls
    if tensor.__dict__:
        spare.__dict__ = tensor.__dict__
    tensor.__dict__ = record
    tensor.__class__ = DisposedTorchTensor


_Known = tuple[type, Any, Any]

# What is remembered of dead tensors is shared among those that were alike: nothing can be set on them, and disposing
# many allocates nothing that the collector would have to look at.
_records: Final[dict[_Known, dict[str, _Known]]] = {}
_RECORDS_AT_MOST: Final = 10_000


def _record_of(known: _Known) -> dict[str, _Known]:
    if known[0] is not Tensor:
        # Held here, a class of the program's own would live on.
        return {_KNOWN: known}
    if len(_records) >= _RECORDS_AT_MOST:
        _records.clear()
    record = _records[known] = {_KNOWN: known}
    return record


PINNED: Final[list[ref[Any]]] = []
"""Dead handles whose implementation C++ refers to weakly and a graph still holds: see `drop_pinned`."""


def _drop_referenced(tensor: Any, spare: Any, record: Any) -> None:
    """Make a handle dead to whose implementation C++ has a weak reference, as that of ``retain_grad()`` is."""
    with _Undisturbed():
        cls: Any = type(tensor)  # pyright: ignore[reportUnknownVariableType] (from Any)
        state = tensor.__dict__
        swapped = _forget_hook(tensor) and _swapped(tensor, spare)
        if swapped:
            spare.__class__ = cls
            if state:
                spare.__dict__ = state
        tensor.__dict__ = record
        tensor.__class__ = DisposedTorchTensor
        if not swapped:
            PINNED.append(ref(tensor))


drop = drop_in_python
if TORCH_HOT is not None:
    TORCH_HOT.bind_disposal(
        {
            "Tensor": Tensor,
            "below_autograd": _C._AutoDispatchBelowADInplaceOrView,
            "disposed": DisposedTorchTensor,
            "drop": drop_in_python,
            "husk": _HUSK,
            "make": _make,
            "modes_are_on": _modes_are_on,
            "records": _records,
            "spare": Spare,
            "swap": _swap,
            "swap_refused": _drop_referenced,
        }
    )
    drop = TORCH_HOT.drop


def drop_pinned() -> None:
    """Give back the memory of dead handles that had to wait until a graph was done with them."""
    if _C._functorch.peek_interpreter_stack() is not None:
        # A transform refuses what is done in place to tensors from outside of it.
        return
    waiting, PINNED[:] = PINNED[:], []
    with _Undisturbed():
        for waiter in waiting:
            tensor = waiter()
            if tensor is None:
                continue
            spare: Any = _make(Spare, _HUSK)
            state = object.__getattribute__(tensor, "__dict__")
            Tensor.__setattr__(tensor, "__class__", Tensor)
            if _swapped(tensor, spare) or (_forget_hook(tensor) and _swapped(tensor, spare)):
                spare.__class__ = Tensor
                tensor.__dict__ = state
            else:
                PINNED.append(waiter)
            tensor.__class__ = DisposedTorchTensor


def _swapped(tensor: Any, spare: Any) -> bool:
    try:
        _swap(tensor, spare)
    except RuntimeError:
        return False
    return True


def _forget_hook(tensor: Any) -> bool:
    """Get rid of the hook of ``retain_grad()``, which refers weakly to the implementation, where nobody else sees it.

    An operation in place moves the hook to a new node of the graph, which nobody but the tensor has, and ``detach_``
    drops that node. A graph that saved the tensor, or a view's base, would see both.
    """
    if tensor._use_count() > 1 or not tensor.retains_grad or tensor._is_view() or tensor.layout is not torch.strided:
        return False
    with torch.enable_grad(), _unsafe_preserve_version_counter(tensor):
        tensor.set_(torch.empty(0, dtype=tensor.dtype, device=tensor.device))
        tensor.detach_()
    return True


def _metadata(tensor: Any, cls: type) -> _Known:
    try:
        known = cls, tensor.shape, tensor.dtype
        # A symbolic shape cannot be hashed.
        hash(known)
    except Exception:  # a class of the user's own, or a nested tensor, which has no shape
        return cls, None, getattr(tensor, "dtype", None)
    return known


def last_known(tensor: Any) -> str:
    """Kind, shape and dtype of a disposed tensor, as they were."""
    known = object.__getattribute__(tensor, "__dict__").get(_KNOWN)
    if known is None:
        return "torch.Tensor"
    cls, shape, dtype = known
    name = cls.__qualname__ if cls is not Tensor else "torch.Tensor"
    return " ".join([name, *([] if shape is None else [f"{tuple(shape)}"]), *([] if dtype is None else [f"{dtype}"])])


def _refusal(tensor: Any) -> BaseException:
    if tensor is None:
        return DisposedError("a disposed torch.Tensor was used", resource="torch.Tensor")
    kind = kind_of_type(Tensor)
    assert kind is not None  # PyTorch is taught before anything of it can be disposed
    return disposed_error(tensor, kind)


def _first_dead(tree: object) -> Any:
    pending: list[object] = [tree]
    while pending:
        node = pending.pop()
        if type(node) is DisposedTorchTensor:
            return node
        if isinstance(node, (dict, list, tuple)):
            children: Any = node.values() if isinstance(node, dict) else node  # pyright: ignore[reportUnknownVariableType] (from Any)
            pending.extend(children)
    return None
