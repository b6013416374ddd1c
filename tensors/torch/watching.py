"""Watching PyTorch's memory for a leak detector: on every thread, inside of scopes and outside."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from importlib import import_module
from sys import _getframe
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FrameType,
    GetSetDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
)
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import Parameter, UninitializedBuffer, UninitializedParameter
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from ...leaks.births.log import LOG, Row, Seen, Told, is_referenced, see
from ...leaks.detector.recording import CACHES
from ...leaks.detector.watching import RELEASES, add_watcher
from ...scopes.kinds import device_name
from ...scopes.listeners import HOOKS
from ...scopes.sites import KEEPER, PASSING, THROUGH, add_judge
from ..tensor.watching import ALIASES
from .births import (
    GIVEN_UP,
    LOCAL,
    MODE,
    SIGHTINGS,
    WATCHES,
    BirthMode,
    add_mode,
    copies_a_module,
    keeps_births,
    pause_births,
    remove_mode,
    resume_births,
    tell_late,
)
from .disposal import PENDING
from .extension import TORCH_COMPILED
from .references import STEPS, TORCH_WATCH, show_edges
from .storages import storage_of

if TYPE_CHECKING:
    from ...leaks.births.log import Escape, Rows
    from ...scopes.identity import Entry
    from ...scopes.kinds import Kind
    from ...scopes.scope import DisposeScope

__all__ = [
    "CALLS",
    "MODELS_OWN",
    "NAME",
    "UNDISTURBED",
    "ZEROING",
    "Calls",
    "Zeroing",
    "assigned",
    "copying_a_module",
    "device_of",
    "exclude",
    "moved",
    "storage_undisturbed",
    "watch_memory",
]

# ``Optimizer.zero_grad`` without the modes of this library, while a leak detector is open.
#
# It makes nothing, and it reads and sets an attribute of each parameter, of which every mode is
# told: in a training step of many small calls that is half of all that the modes are told.


_class: Final[Any] = Optimizer


@final
class Zeroing:
    """The one instance is `ZEROING`."""

    __slots__ = ("_ours", "_theirs")

    def __init__(self) -> None:
        self._theirs: Callable[..., Any] | None = None
        self._ours: Callable[..., Any] | None = None

    def begin(self) -> None:
        """Take the modes off in every call from now on."""
        if self._theirs is None:
            theirs: Callable[..., Any] = _class.zero_grad
            self._theirs = theirs
            _class.zero_grad = self._ours = _quiet(theirs)

    def end(self) -> None:
        """Let the calls be as they were, unless somebody else has replaced the method since: then it stays beneath."""
        if _class.zero_grad is self._ours:
            _class.zero_grad = self._theirs
            self._theirs = self._ours = None


def _quiet(zero_grad: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(zero_grad)
    def quiet(self: Any, *args: Any, **kwargs: Any) -> Any:
        here = LOCAL.here
        if torch.compiler.is_compiling() or here.stepping or not here.watched:
            return zero_grad(self, *args, **kwargs)
        reason = id(_getframe())
        pause_births(reason)
        try:
            return zero_grad(self, *args, **kwargs)
        finally:
            resume_births(here, reason)

    return quiet


ZEROING: Final = Zeroing()

# Seeing what calls of PyTorch return, on every thread, without a mode on any stack.
#
# Python calls a compiled function by an entry of a table. While a leak detector is open, the
# entries of the functions and methods of PyTorch that return tensors lead through the compiled
# part, which learns what they returned; operators that were looked up by name (``torch.ops``) have
# no entry, and are seen by the class that calls them. Where there is no compiled part, or PyTorch
# is another than it knows, a mode sees the calls of each thread: see `watching`.


_C: Final[Any] = torch._C
_ops: Final[Any] = import_module("torch._ops")
_base: Final[Any] = _C.TensorBase.__dict__
_MODULES: Final = ("_fft", "_linalg", "_nested", "_nn", "_sparse", "_special")
# Not those that are read at every step: of what is assigned to a gradient `births.give_up` hears.
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
        if TORCH_COMPILED is None or TORCH_WATCH is None:
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
                TORCH_COMPILED.api, functions, attributes, items, constructors, others, moved, assigned
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

# Memory that a tensor did not get by being made: it was handed a storage, or is handed to a model.
#
# What unpickling and ``torch.load`` make of a storage is born where the tensor is given it. What
# becomes a parameter, a buffer or a gradient is the model's, and is told of no more.


_owners_of: Final[Callable[[int], int]] = _C._storage_Use_Count
UNDISTURBED: Final[Any] = _C.DisableTorchFunction
NAME: Final = "torch.Tensor"
MODELS_OWN: Final = (Parameter, UninitializedBuffer, UninitializedParameter)
_GRADIENTS: Final = frozenset({"grad", "_grad"})
_OUR_PACKAGE: Final = __name__.partition(".")[0]
# Code of PyTorch that makes a tensor of what another process or a file handed over, and then sets its attributes.
_REBUILDS: Final = frozenset({"torch._utils", "torch.multiprocessing.reductions"})
# The tensor, and the object for the storage that is asked.
_OWNERS: Final = 2


def storage_undisturbed(tensor: Any) -> Any:
    """The storage of a tensor, or None, without that anybody sees it asked."""
    with UNDISTURBED():
        return storage_of(tensor)


def device_of(storage: Any) -> str | None:
    """The name of the device of a storage; None where it has no memory."""
    device = storage.device
    return None if device.type == "meta" else device_name(device)


def copying_a_module() -> bool:
    """Whether ``copy.deepcopy`` of a module runs here."""
    frame: FrameType | None = _getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "deepcopy" and frame.f_globals.get("__name__") == "copy":
            return copies_a_module(frame)
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ("torch", _OUR_PACKAGE):
            return False
        frame = frame.f_back
    return False


def moved(tensor: Any, op: Any, bound: Any, args: Any, kwargs: Any) -> None:
    """Put the memory down that a tensor was given, by ``set_`` or when it was made, where it is no other tensor's."""
    given: list[Any] = [*args[:1], *(kwargs or {}).values()]
    if not any(isinstance(one, Tensor) for one in given) and not copying_a_module():
        _see_handed_over(tensor, op)


def assigned(name: str, tensor: Any, value: Any) -> None:
    """A tensor that is assigned to ``.grad`` belongs to the parameter; one that gets its hooks was rebuilt perhaps."""
    if name in _GRADIENTS:
        exclude(value)
    elif _rebuilds(_getframe(1)):
        _see_handed_over(tensor)


def _rebuilds(frame: FrameType | None) -> bool:
    """Whether code of PyTorch makes a tensor that was handed over."""
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _OUR_PACKAGE:
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") in _REBUILDS


def _see_handed_over(tensor: Any, op: Any = None) -> None:
    """Put the memory of a tensor down; not where the storage has more owners, for then it was there."""
    if issubclass(type(tensor), MODELS_OWN):
        exclude(tensor)
        return
    with UNDISTURBED():
        storage = storage_of(tensor) if isinstance(tensor, Tensor) else None
        if storage is None or LOG.recall_memory(storage) is not None:
            return
        if _owners_of(storage._cdata) > _OWNERS:
            return
        device = device_of(storage)
        nbytes = 0 if device is None else storage.nbytes()
    if nbytes:
        # Where it was not told what was called, that is the function of PyTorch that the user's line did.
        LOG.sight(storage, op, nbytes, NAME, device)


def exclude(tensor: Any) -> None:
    """Tell no more of the memory of a tensor: it is the model's."""
    if isinstance(tensor, Tensor):
        storage = storage_undisturbed(tensor)
        if storage is not None:
            LOG.exclude(storage)


# Watching PyTorch's memory for a leak detector: on every thread, inside of scopes and outside,
# owned by nobody.
#
# What is watched is a tensor's storage: a weak reference to ``t.untyped_storage()`` fires when the
# memory goes, whoever has it: views, graphs, NumPy and DLPack exports.


_storage_of: Final[Callable[[Any], Any]] = _C.TensorBase.untyped_storage
_nbytes_of: Final[Callable[[Any], int]] = torch.UntypedStorage.nbytes
_backward_running: Final[Callable[[], int]] = _C._current_graph_task_id
_PLAIN: Final = (bool, int, float, str, torch.Size, torch.dtype, torch.device, torch.layout)
_DEEPCOPY: Final[Any] = vars(Tensor)["__deepcopy__"]
_BELOW: Final = 3
_OURS: Final = (__name__, exclude.__module__)
# What a call for a tensor without memory runs, written in Python.
_KERNELS: Final = ("torch._decomp", "torch._meta_registrations", "torch._prims", "torch._refs")


class Watch(TorchFunctionMode):
    """The mode, where calls are not seen without one: lets each through, and puts the memory of its result down."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, and put the memory of its result down."""
        result = func(*args) if kwargs is None else func(*args, **kwargs)
        if type(func) is MethodWrapperType:
            if result is None and func.__name__ == "__set__" and len(args) > 1:
                assigned(getattr(func.__self__, "__name__", ""), *args[:2])
        elif type(result) is Tensor:
            if func is _DEEPCOPY:
                _see(result, func, args, kwargs)
            elif _backward_running() == -1:
                _sight(result, func, args, kwargs)
        elif type(result) not in _PLAIN and result is not None and _backward_running() == -1:
            _see(result, func, args, kwargs)
        return result


def _sight_in_python(tensor: Any, func: Any, args: Any, kwargs: Any) -> None:
    """Put the memory of a tensor down, unless an argument has it."""
    with UNDISTURBED():
        storage = storage_of(tensor)
        if storage is None or LOG.recall_memory(storage) is not None:
            return
        given: list[Any] = [*args, *(kwargs or {}).values()]
        given += [one for argument in given if type(argument) in (list, tuple) for one in argument]
        if any(isinstance(one, Tensor) and storage_of(one) is storage for one in given):
            return
        nbytes, device = storage.nbytes(), device_of(storage)
    if nbytes and device is not None:
        LOG.sight(storage, getattr(func, "__name__", None), nbytes, NAME, device)


_sight: Final[Callable[[Any, Any, Any, Any], None]] = _sight_in_python if TORCH_WATCH is None else TORCH_WATCH.sight


def _see(result: Any, func: Any = None, args: Any = (), kwargs: Any = None) -> None:
    """Put the memory of the tensors in what a call returned down."""
    if func is _DEEPCOPY and copying_a_module():
        return
    with UNDISTURBED():
        for tensor in _tensors_in(result, _BELOW):
            # Where all calls are seen, so is what made the tensors that it wraps.
            if not (WATCHES and type(tensor) is not Tensor and _is_hollow(tensor)):
                _sight(tensor, func, args, kwargs)


def _is_hollow(tensor: Any) -> bool:
    """Whether the storage of a tensor of a subclass is for show: it wraps other tensors."""
    storage = storage_of(tensor)
    # A lazy copy would be made by asking.
    if storage is None or device_of(storage) is None or _C._is_cow_tensor(tensor):
        return False
    try:
        storage.data_ptr()
    except RuntimeError:
        return True
    return False


def _tensors_in(tree: Any, levels: int) -> Iterator[Any]:
    cls: Any = type(tree)  # pyright: ignore[reportUnknownVariableType] (from Any)
    if issubclass(cls, Tensor):
        if not issubclass(cls, MODELS_OWN):
            yield tree
    elif levels and issubclass(cls, (list, tuple, dict)):
        for child in tree.values() if issubclass(cls, dict) else tree:
            yield from _tensors_in(child, levels - 1)


def _others(result: Any, op: Any, bound: Any, args: Any, kwargs: Any) -> None:
    """Put the memory of the tensors in what a call returned down: of subclasses, or in a dict."""
    _see(result, op, (bound, *args) if type(args) is tuple else (bound, args), kwargs)


def _judge(code: CodeType, module: str) -> int | None:
    """What code of PyTorch is to births."""
    if code is torch.overrides.handle_torch_function.__code__:
        return THROUGH
    if module in _OURS or code is BirthMode.__torch_function__.__code__ or module.startswith(_KERNELS):
        return PASSING
    if module.startswith("torch.nn.parameter") or code.co_name == "flatten_parameters" or keeps_births(module, code):
        return KEEPER
    return None


WATCH: Final = Watch()


@final
class TorchWatcher:
    """The one instance is among the watchers: see `Watcher`."""

    __slots__ = ("kind",)

    def __init__(self, kind: Kind) -> None:
        self.kind: Kind | None = kind

    def begin(self) -> None:
        """Watch this thread, or all of them."""
        if not CALLS.begin():
            here = LOCAL.here
            if not any(mode is WATCH for mode in here.modes):
                add_mode(here, WATCH)
            if here.scopes and not any(mode is MODE for mode in here.modes):
                # It tells of births in the scopes that are open, from now on.
                add_mode(here, MODE)
            ZEROING.begin()
        STEPS.begin()
        if _see not in SIGHTINGS:
            SIGHTINGS.append(_see)
            GIVEN_UP.append(exclude)
            HOOKS.array_moved_out.append(_let_out)

    def end(self) -> None:
        """Watch it no more. The mode of another thread lets everything through from now on."""
        tell_late()
        CALLS.end()
        remove_mode(LOCAL.here, WATCH)
        SIGHTINGS.clear()
        GIVEN_UP.clear()
        if _let_out in HOOKS.array_moved_out:
            HOOKS.array_moved_out.remove(_let_out)
        STEPS.end()
        ZEROING.end()

    def recall(self, entry: Entry) -> Row | None:
        """What is known of the memory of a tensor."""
        if entry.kind is not self.kind:
            return None
        tensor = entry()
        storage = None if tensor is None else storage_undisturbed(tensor)
        row: Row | None = None if storage is None else LOG.recall_memory(storage)
        return row

    def seen(self, after: int, until: int, but: Container[Hashable]) -> tuple[list[Seen], Rows]:
        """The memory of a window that is there now."""
        PENDING.settle()
        references, rows = LOG.sightings(after, until)
        return see(NAME, but, _identify, is_referenced, references, rows, _escape if LOG.escapes() else None)


def _identify(storage: Any) -> Told | None:
    # The log has memory of other frameworks as well.
    return (("torch", storage._cdata), storage.nbytes()) if type(storage) is torch.UntypedStorage else None


def _of_others() -> Iterator[int]:
    """Where the memory of tensors is that PyTorch did not allocate: that of ``from_numpy``."""
    references, _ = LOG.sightings(0, LOG.counts()[0])
    for reference in references:
        storage = reference()
        if type(storage) is torch.UntypedStorage and not storage.resizable() and storage.device.type == "cpu":
            yield storage.data_ptr()


def _released(entry: Entry, _: DisposeScope | None) -> None:
    tensor = entry()
    storage = None if tensor is None else storage_undisturbed(tensor)
    if storage is not None:
        LOG.escape(storage)


def _escape(_: Seen, reference: Callable[[], object]) -> Escape | None:
    storage = reference()
    return "disposed" if storage is not None and LOG.has_escaped(storage) else None


def _let_out(array: Any) -> None:
    """An array was moved out: where it is an alias of a tensor, its memory is meant to be there."""
    while isinstance(array, np.ndarray):
        array = array.base
    storage = storage_undisturbed(array) if isinstance(array, Tensor) else None
    if storage is not None:
        LOG.let_out(storage)


def _cached_nbytes() -> int:
    """What the allocator for CUDA keeps for later use; asking shall not start CUDA."""
    cuda: Any = torch.cuda
    if not cuda.is_initialized():
        return 0
    devices = range(cuda.device_count())
    return sum(cuda.memory_reserved(device) - cuda.memory_allocated(device) for device in devices)


def watch_memory(kind: Kind) -> None:
    """Watch PyTorch's memory whenever a detector is open, from now on."""
    LOG.describe_kind(kind, NAME, None, storage_undisturbed, "", False)
    if TORCH_WATCH is not None:
        TORCH_WATCH.bind(
            LOG.api, Tensor, _storage_of, _nbytes_of, device_of, NAME, "cpu:0",
        )  # fmt: skip
    CALLS.find(_others, moved, assigned)
    add_judge(_judge)
    CACHES.append(_cached_nbytes)
    RELEASES[id(kind)] = _released
    ALIASES.append(_of_others)
    show_edges()
    add_watcher(TorchWatcher(kind))
