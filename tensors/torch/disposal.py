"""Dispose a PyTorch tensor.

Its Python object becomes a placeholder, and what others hold of it stays valid.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable
from sys import _getframe
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from ...scopes.base.errors import DisposedError, DisposeScopeError
from ...scopes.base.process import PATCHES
from ...scopes.identity import Entry, disposed_error
from ...scopes.kinds import kind_of_type
from ..patches import TORCH_SWAPS
from .compiled import MemoryRecorder, unborn
from .pending import PendingDisposals, is_only_thread

__all__ = [
    "COUNTS_CPLUSPLUS",
    "PENDING",
    "RECORDER",
    "DisposedTorchTensor",
    "Spare",
    "allow_swaps",
    "can_be_disposed",
    "drop",
    "is_owned_by_cplusplus",
    "last_known",
    "swap",
]

# A Python tensor object refers to an implementation in C++, which a graph or a view may hold too.
# ``torch._C._swap_tensor_impl`` (the core of the public ``torch.utils.swap_tensors``) exchanges the
# implementations of two objects. `drop` exchanges that of the disposed tensor with that of a new
# object, the spare. The tensor then has a placeholder, which refuses every use:
#
# - Python code finds the class `DisposedTorchTensor`, whose attributes raise.
# - Functions of PyTorch call its ``__torch_function__``.
# - Code that skips that (``torch._C.DisableTorchFunctionSubclass``, TorchScript, C++ operators)
#   finds the placeholder's Python dispatch key, and calls ``__torch_dispatch__``. So does C++ code
#   that asks for sizes, device or layout directly (``Generator.set_state``).
# - C++ code that reads memory finds a sparse meta tensor, which has none.


# Bound once: these stand on the path of every disposal.
_C: Final[Any] = torch._C
_Base: Final[Any] = _C.TensorBase
_make: Final[Any] = Tensor._make_subclass
_modes_are_on: Final[Callable[[], bool]] = _C._is_torch_function_mode_enabled
_Undisturbed: Final[Any] = _C.DisableTorchFunction


def _counts_cplusplus() -> bool:
    tensor = torch.ones(1)
    before = sys.getrefcount(tensor)
    view = tensor.view(1)
    after = sys.getrefcount(tensor)
    del view
    return after > before


with _Undisturbed():
    # Releases before 2.10 instead give the Python object to C++ when Python no longer refers to it.
    COUNTS_CPLUSPLUS: Final = _counts_cplusplus()
"""Whether C++ that refers to a tensor counts as one reference to its Python object."""


def _swap_what_python_owns(tensor: Tensor, other: Tensor, /) -> None:
    # A weak reference, such as an entry, may have returned an object that C++ owns. After the
    # exchange C++ would own an object that is freed. This call makes Python the owner.
    if _C._functorch.unwrap_if_dead(tensor) is not tensor:
        raise RuntimeError("a tensor of a transform that has ended cannot be exchanged")
    _C._swap_tensor_impl(tensor, other)


swap: Final[Callable[[Tensor, Tensor], None]] = _C._swap_tensor_impl if COUNTS_CPLUSPLUS else _swap_what_python_owns
"""Exchange two tensors' implementations. `RuntimeError` where C++ refers weakly to one of them."""


def is_owned_by_cplusplus(tensor: Tensor, /) -> bool:
    """Return whether C++ owned a tensor's Python object until now; Python owns it afterwards.

    Only releases before 2.10 let C++ own one. There the call that returns the object hands over the
    reference of C++ if C++ owned it. Otherwise it makes a new reference.
    """
    before = sys.getrefcount(tensor)
    handed_over = _C._functorch.unwrap_if_dead(tensor)
    return handed_over is tensor and sys.getrefcount(tensor) == before


def _setter_of_versions() -> Callable[[Tensor, int], None]:
    set_all: Final[Any] = _C._autograd._unsafe_set_version_counter
    try:
        set_all((), ())
    except TypeError:
        # Releases before 2.7 take one tensor.
        return set_all  # type: ignore[no-any-return]  # from Any
    return lambda tensor, version: set_all((tensor,), (version,))


_set_version: Final = _setter_of_versions()

# Attributes of a disposed tensor.
_KNOWN: Final = "_disposescope_last_known"
"""Its class, shape and dtype, as `_Known`."""
_HASH: Final = "_disposescope_hash"
"""Its hash, where its class computes one in its own way."""
_STATE: Final = "_disposescope_state"
"""Its former ``__dict__``, until the implementation is taken out; absent where that was empty."""

# Attributes of a disposed tensor that do not raise: the interpreter and PyTorch need them in order
# to refuse a use.
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
        # A weak reference of PyTorch's own calls it on what it finds.
        "_fix_weakref",
    }
)
# ``isinstance(thing, torch.nn.Parameter)`` reads these of any object, with a default. They are
# absent: a `DisposedError` would come out of ``isinstance``.
_ALWAYS_ABSENT: Final = frozenset({"_is_param", "_is_buffer"})


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise _refusal(self)

    refuse.__name__ = name
    return refuse


def _refuse_attribute(self: Any, name: str) -> Any:
    if name in _ALLOWED:
        return object.__getattribute__(self, name)
    if name in _ALWAYS_ABSENT:
        raise AttributeError(name)
    raise _refusal(self)


def _refuse_setting(self: Any, name: str, value: Any) -> None:
    if name != "_backward_hooks" or _getframe(1).f_code is not _forget_hook.__code__:
        raise _refusal(self)
    # PyTorch resets this attribute where `_forget_hook` changes the tensor in place.
    _Base._backward_hooks.__set__(self, value)


def _refuse_function(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
    raise _refusal(_first_dead((args, kwargs)))


def _hash(self: Any) -> int:
    found: int = object.__getattribute__(self, "__dict__").get(_HASH, id(self))
    return found


def _represent(self: Any) -> str:
    return f"<disposed {last_known(self)}>"


class Spare(Tensor):
    """The class of a spare until the exchange: see the comment at the top of the module.

    It has ``__torch_dispatch__``, so the implementation gets the Python dispatch key.
    """

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
        "__setattr__": _refuse_setting,
        "__delattr__": _refusing("__delattr__"),
        "__repr__": _represent,
        "__hash__": _hash,
    }
)
DisposedTorchTensor: Final[type[Tensor]] = type("DisposedTorchTensor", (Tensor,), _body)

# Sparse, so that it has no storage; on the meta device, so that no kernel reads it; and without
# dimensions, so that it has no size.
with _Undisturbed():
    _PLACEHOLDER: Final = torch.empty((), layout=torch.sparse_coo, device="meta")

# Options for making a spare: PyTorch calls ``__torch_dispatch__`` for sizes, device and layout too.
_DISPATCHED: Final = {"dispatch_sizes_strides_policy": "sizes", "dispatch_device": True, "dispatch_layout": True}


def can_be_disposed(cls: type) -> bool:
    """Return whether the instances of a tensor class can be disposed.

    Not those of a class with slots: they cannot get the class `DisposedTorchTensor`.
    """
    return cls is Tensor or (
        cls is not DisposedTorchTensor
        and cls.__basicsize__ == DisposedTorchTensor.__basicsize__
        and cls.__dictoffset__ == DisposedTorchTensor.__dictoffset__
        and cls.__weakrefoffset__ == DisposedTorchTensor.__weakrefoffset__
    )


def drop(tensor: Any, /) -> None:
    """Dispose a handle. Its storage is freed where nothing else refers to it.

    Raises
    ------
    DisposeScopeError
        The instances of its class cannot be disposed. The tensor is left as it is.
    """
    cls: Any = type(tensor)  # pyright: ignore[reportUnknownVariableType] (from Any)
    known: _Known
    if cls is Tensor and not _modes_are_on():
        try:
            known = cls, tensor.shape, tensor.dtype
        except RuntimeError:
            known = _metadata(tensor, cls)
    elif cls is DisposedTorchTensor:
        return
    elif not can_be_disposed(cls):
        raise DisposeScopeError(
            f"a {cls.__module__}.{cls.__qualname__} cannot be disposed: its class has slots of its own; "
            "it is left as it is, and lives by reference count"
        )
    else:
        with _Undisturbed():
            known = _metadata(tensor, cls)
    record = _records.get(known) or _record_of(known, tensor)
    # Made first: where that fails, the tensor is left as it is.
    spare = _make(Spare, _PLACEHOLDER, **_DISPATCHED) if is_only_thread() else None
    state = tensor.__dict__
    if state:
        state = _left_to_others(tensor, state)
    tensor.__dict__ = {**record, _STATE: state} if state else record
    tensor.__class__ = DisposedTorchTensor
    if spare is None:
        PENDING.add(tensor)
    elif not _exchange(tensor, spare):
        PENDING.keep(tensor)


def _give_back(tensor: Any) -> bool:
    return _exchange(tensor, _make(Spare, _PLACEHOLDER, **_DISPATCHED))


def _exchange(tensor: Any, spare: Any) -> bool:
    """Exchange the implementations of a disposed handle and a spare.

    Returns
    -------
    bool
        False where that is not possible: C++ refers weakly to the implementation, as after
        ``retain_grad()``, and a graph holds it.
    """
    record = object.__getattribute__(tensor, "__dict__")
    # A graph that holds the implementation gets the spare as its Python object. So the spare gets
    # the class and the attributes of the tensor. An interrupt may come right after the exchange:
    # hence before it.
    if _STATE in record:
        spare.__dict__ = record[_STATE]
    spare.__class__ = record[_KNOWN][0]
    try:
        swap(tensor, spare)
    except RuntimeError:
        with _Undisturbed():
            if not (_forget_hook(tensor) and _swapped(tensor, spare)):
                # Freeing the spare must run no code of the tensor's class.
                object.__setattr__(spare, "__class__", Spare)
                return False
    record.pop(_STATE, None)
    return True


def _left_to_others(tensor: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a tensor that is about to be disposed, for a graph that holds it.

    A tensor that is made of others, such as a nested one, refers to their handles. These are
    disposed next, so the graph gets new handles of the same memory.
    """
    if _Base._use_count(tensor) <= 1:
        return state
    return {name: unborn(_alias, value) if issubclass(type(value), Tensor) else value for name, value in state.items()}


def _alias(tensor: Tensor) -> Tensor:
    if type(tensor) is DisposedTorchTensor:
        return tensor
    with _Undisturbed():
        alias = tensor.detach()
    nested: Any = sys.modules.get("torch.nested._internal.nested_tensor")
    registry: Any = getattr(nested, "_tensor_symint_registry", {})
    rows = registry.get(tensor)
    if rows is not None:
        # PyTorch compares the row lengths of nested tensors by the object that holds the offsets.
        # The alias must count as the same lengths.
        registry[alias] = rows
    return alias


PENDING: Final = PendingDisposals(_give_back)
"""The disposed handles whose memory cannot be given back yet."""


# The class, shape and dtype of a disposed tensor.
_Known = tuple[type, Any, Any]

# Disposed tensors with the same class, shape and dtype share one ``__dict__``. Nothing can be set
# on them, so that is safe. Disposing many then makes no objects for the garbage collector.
_records: Final[dict[_Known, dict[str, Any]]] = {}
_RECORDS_AT_MOST: Final = 10_000
"""How many shapes `_records` holds before it is emptied: a program may use new ones for ever."""


def _record_of(known: _Known, tensor: Any) -> dict[str, Any]:
    cls: Any = known[0]
    if cls is not Tensor:
        # Not kept in `_records`, which would keep a class of the program alive.
        record: dict[str, Any] = {_KNOWN: known}
        if cls.__hash__ is not Tensor.__hash__:
            try:
                with _Undisturbed():
                    record[_HASH] = hash(tensor)
            except Exception:  # the class of the program's own does not hash this one
                pass
        return record
    if len(_records) >= _RECORDS_AT_MOST:
        _records.clear()
    record = _records[known] = {_KNOWN: known}
    return record


def _swapped(tensor: Any, spare: Any) -> bool:
    try:
        swap(tensor, spare)
    except RuntimeError:
        return False
    return True


def _forget_hook(tensor: Any) -> bool:
    """Remove the hook of ``retain_grad()``; return False where others could notice that.

    The hook refers weakly to the implementation. An operation in place moves the hook to a new node
    of the graph, which only the tensor refers to, and ``detach_`` drops the node. A graph that
    saved the tensor, or the base of a view, would notice both.
    """
    # The class of the tensor raises at every attribute by now: hence the getters of its base class.
    if (
        _Base._use_count(tensor) > 1
        or not _Base.retains_grad.__get__(tensor)
        or _Base._is_view(tensor)
        or _Base.layout.__get__(tensor) is not torch.strided
    ):
        return False
    version = _Base._version.__get__(tensor)
    with torch.enable_grad():
        _Base.set_(tensor, torch.empty(0, dtype=_Base.dtype.__get__(tensor), device=_Base.device.__get__(tensor)))
        _Base.detach_(tensor)
    _set_version(tensor, version)
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
    """Return the class, shape and dtype that a disposed tensor had, as text."""
    known = object.__getattribute__(tensor, "__dict__").get(_KNOWN)
    if known is None:
        return "torch.Tensor"
    cls, shape, dtype = known
    name = cls.__qualname__ if cls is not Tensor else "torch.Tensor"
    return " ".join([name, *([] if shape is None else [f"{tuple(shape)}"]), *([] if dtype is None else [f"{dtype}"])])


def _refusal(tensor: Any) -> BaseException:
    if tensor is None:
        return DisposedError("a disposed torch.Tensor was used", resource="torch.Tensor")
    if PENDING.batches or PENDING.fresh:
        # The calling frame's operation is being refused, so disposals need not wait for it.
        PENDING.settle(_getframe(1).f_back)
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


# ``torch.utils.swap_tensors`` must work for tensors that scopes own.
#
# It refuses a tensor with weak references, since these would refer to other content afterwards.
# ``Module.to`` and ``load_state_dict`` call it after
# ``torch.__future__.set_swap_module_params_on_conversion(True)``. The entries of this library are
# weak references to the handle, whatever its content is, so a swap does not harm them.


_utils: Final[Any] = torch.utils

RECORDER: Final = MemoryRecorder(tensor=Tensor, storage_of=_Base.untyped_storage)
"""Records the memory of tensors for leak detectors; refers weakly to the latest tensors."""


def _references_of_others(thing: object) -> list[Any]:
    # `RECORDER` refers weakly to the latest tensors until it has looked at them.
    RECORDER.look()
    return [reference for reference in weakref.getweakrefs(thing) if not isinstance(reference, Entry)]


def allow_swaps() -> None:
    """Let ``torch.utils.swap_tensors`` pass over this library's weak references from now on."""
    PATCHES.replace(TORCH_SWAPS, _utils, "weakref", _without_ours)


def _without_ours(theirs: types.ModuleType) -> types.SimpleNamespace:
    return types.SimpleNamespace(**{**vars(theirs), "getweakrefs": _references_of_others})
