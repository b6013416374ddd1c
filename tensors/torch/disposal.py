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

# ``torch._C._swap_tensor_impl`` (what the public ``torch.utils.swap_tensors`` ends in) gives the
# implementation, which a graph or a view may hold, to a fresh object, and the fresh object's
# implementation to the tensor: that one is a placeholder, which refuses on every path. Python code
# meets the class `DisposedTorchTensor`, whose attributes raise; functions of PyTorch meet its
# ``__torch_function__``; code that skips this (``torch._C.DisableTorchFunctionSubclass``,
# TorchScript, C++ operators) meets the Python dispatch key of the placeholder, and with it
# ``__torch_dispatch__``; so does C++ that asks for sizes, device or layout past all of them
# (``Generator.set_state``); and C++ that reads memory meets a sparse meta tensor, which has none to
# be read.


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
    # Releases before 2.10 hand the Python object over to C++ instead, when Python refers to it no
    # more.
    COUNTS_CPLUSPLUS: Final = _counts_cplusplus()
"""Whether C++ that refers to a tensor counts as one reference to its Python object."""


def _swap_what_python_owns(tensor: Tensor, other: Tensor, /) -> None:
    # A weak reference of Python's, such as an entry, may have found an object that C++ owns. The
    # exchange would leave C++ with an object that is freed. What hands the object to Python takes
    # it over.
    if _C._functorch.unwrap_if_dead(tensor) is not tensor:
        raise RuntimeError("a tensor of a transform that has ended cannot be exchanged")
    _C._swap_tensor_impl(tensor, other)


swap: Final[Callable[[Tensor, Tensor], None]] = _C._swap_tensor_impl if COUNTS_CPLUSPLUS else _swap_what_python_owns
"""Exchange two tensors' implementations. `RuntimeError` where C++ refers weakly to one of them."""


def is_owned_by_cplusplus(tensor: Tensor, /) -> bool:
    """Return whether the caller has its object from C++, which owned it until now.

    Only releases before 2.10 let C++ own one. What hands it to Python passes the reference of C++
    on to whoever asks, and makes a new one otherwise.
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

_KNOWN: Final = "_disposescope_last_known"
_HASH: Final = "_disposescope_hash"
_STATE: Final = "_disposescope_state"

# What may still be asked of a disposed tensor: what the interpreter and PyTorch need in order to
# refuse it.
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
# Asked of anything by ``isinstance(thing, torch.nn.Parameter)``, with a default: absent, not
# refused.
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


def _refuse_setting(self: Any, name: str, value: Any) -> None:
    if name != "_backward_hooks" or _getframe(1).f_code is not _forget_hook.__code__:
        raise _refusal(self)
    # PyTorch lets go of what is hooked to a tensor that is changed in place.
    _Base._backward_hooks.__set__(self, value)


def _refuse_function(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
    raise _refusal(_first_dead((args, kwargs)))


def _hash(self: Any) -> int:
    found: int = object.__getattribute__(self, "__dict__").get(_HASH, id(self))
    return found


def _represent(self: Any) -> str:
    return f"<disposed {last_known(self)}>"


class Spare(Tensor):
    """The class that a placeholder is made with.

    The dispatcher asks Python, and the class can be changed.
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

# A sparse implementation has no storage, a meta one no kernels that would read it, and one without
# dimensions no size.
with _Undisturbed():
    _PLACEHOLDER: Final = torch.empty((), layout=torch.sparse_coo, device="meta")

# Of a spare: the dispatcher asks Python for everything.
_ASKED: Final = {"dispatch_sizes_strides_policy": "sizes", "dispatch_device": True, "dispatch_layout": True}


def can_be_disposed(cls: type) -> bool:
    """Return whether the instances of a tensor class can be disposed.

    Those with slots cannot change their class.
    """
    return cls is Tensor or (
        cls is not DisposedTorchTensor
        and cls.__basicsize__ == DisposedTorchTensor.__basicsize__
        and cls.__dictoffset__ == DisposedTorchTensor.__dictoffset__
        and cls.__weakrefoffset__ == DisposedTorchTensor.__weakrefoffset__
    )


def drop(tensor: Any, /) -> None:
    """Dispose a handle. Its storage is freed where nobody else has it.

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
    spare = _make(Spare, _PLACEHOLDER, **_ASKED) if is_only_thread() else None
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
    return _exchange(tensor, _make(Spare, _PLACEHOLDER, **_ASKED))


def _exchange(tensor: Any, spare: Any) -> bool:
    """Give the implementation of a dead handle to a spare, and that of the spare to the handle.

    Returns
    -------
    bool
        False where C++ refers weakly to the implementation, as that of ``retain_grad()`` is, and a
        graph holds it.
    """
    record = object.__getattribute__(tensor, "__dict__")
    # A graph that holds the implementation finds the spare from now on, which must be what the
    # tensor was. It is so before the exchange, after which an interrupt may come.
    if _STATE in record:
        spare.__dict__ = record[_STATE]
    spare.__class__ = record[_KNOWN][0]
    try:
        swap(tensor, spare)
    except RuntimeError:
        with _Undisturbed():
            if not (_forget_hook(tensor) and _swapped(tensor, spare)):
                # No code of its class is to run when it dies.
                object.__setattr__(spare, "__class__", Spare)
                return False
    record.pop(_STATE, None)
    return True


def _left_to_others(tensor: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a tensor that is about to be disposed, for a graph that holds it.

    A tensor that is made of others, such as a nested one, refers to their handles, which are
    disposed after it: the graph gets other handles of the same memory.
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
        # Nested tensors with the same tensor of offsets have rows of the same lengths: it stands
        # for them.
        registry[alias] = rows
    return alias


PENDING: Final = PendingDisposals(_give_back)
"""The dead handles whose memory cannot be given back yet."""


_Known = tuple[type, Any, Any]

# What is remembered of dead tensors is shared among those that were alike: nothing can be set on
# them, and disposing many allocates nothing that the collector would have to look at.
_records: Final[dict[_Known, dict[str, Any]]] = {}
_RECORDS_AT_MOST: Final = 10_000


def _record_of(known: _Known, tensor: Any) -> dict[str, Any]:
    cls: Any = known[0]
    if cls is not Tensor:
        # Held here, a class of the program's own would live on.
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
    """Get rid of the hook of ``retain_grad()``, where nobody else sees that.

    The hook refers weakly to the implementation. An operation in place moves it to a new node of
    the graph, which nobody but the tensor has, and ``detach_`` drops that node. A graph that saved
    the tensor, or a view's base, would see both.
    """
    # The tensor is dead for Python code: what is asked here goes past its class.
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
    if PENDING.batches or PENDING.fresh:
        # This thread has left the operation that it may have been in when the tensor was disposed.
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


# ``torch.utils.swap_tensors`` swaps tensors of scopes as it swaps any.
#
# It refuses a tensor that is weakly referenced, since the referent would not be what it was.
# ``Module.to`` and ``load_state_dict`` end in it where
# ``torch.__future__.set_swap_module_params_on_conversion`` asks so. The entries of this library are
# weak references to the handle, which stays what it is when its content is swapped.


_utils: Final[Any] = torch.utils

RECORDER: Final = MemoryRecorder(tensor=Tensor, storage_of=_Base.untyped_storage)
"""Records the memory of tensors for leak detectors, and refers weakly to those made last."""


def _references_of_others(thing: object) -> list[Any]:
    # A leak detector refers to what was made last until it has looked at it.
    RECORDER.look()
    return [reference for reference in weakref.getweakrefs(thing) if not isinstance(reference, Entry)]


def allow_swaps() -> None:
    """Let ``torch.utils.swap_tensors`` pass over this library's weak references from now on."""
    PATCHES.replace(TORCH_SWAPS, _utils, "weakref", _without_ours)


def _without_ours(theirs: types.ModuleType) -> types.SimpleNamespace:
    return types.SimpleNamespace(**{**vars(theirs), "getweakrefs": _references_of_others})
