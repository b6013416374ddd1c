"""Which calls of PyTorch make tensors that a scope owns, and how they are seen.

Births are seen where the Python object of a tensor gets its memory; where that is not possible, by
a function mode.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from importlib import import_module
from pathlib import Path
from sys import _getframe
from types import CodeType, FrameType, MethodWrapperType
from typing import Any, Final, NamedTuple, Protocol, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import Parameter, UninitializedBuffer, UninitializedParameter
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from ...scopes.base.process import PATCHES
from ...scopes.compiled import leave_birth_open, variables_of
from ...scopes.context import CURRENT, resolve
from ...scopes.framework import recording
from ...scopes.identity import LIVE
from ...scopes.kinds import Kind, kind_of
from ...scopes.ownership import belongs_to_model, born, compose
from ..arena.budgets import BUDGETS
from ..patches import TORCH_ALLOCATION
from . import compiled as TORCH_COMPILED
from .compiled import BirthWatch, ThreadState, thread_state
from .disposal import PENDING, RECORDER, Spare, can_be_disposed
from .storages import refusal_of

__all__ = [
    "HIDDEN_KEEPERS",
    "MODE",
    "MODELS_OWN",
    "SEAM",
    "TRACING",
    "BirthMode",
    "Compiled",
    "add_mode",
    "backward_running",
    "births_in",
    "births_now",
    "depth",
    "flattened",
    "give_up",
    "is_looked_at",
    "keeps_births",
    "pause_births",
    "put_on",
    "remove_mode",
    "resume_after_a_failed_step",
    "resume_births",
    "see_allocations",
    "take_off",
    "look",
    "transform_running",
]

# Whether a tensor that a call of PyTorch made is a birth. That depends on what is running (a
# backward pass, a transform) and on the code that made the call.


_C: Final[Any] = torch._C
_tensor: Final[Any] = import_module("torch._tensor")
backward_running: Final[Callable[[], int]] = _C._current_graph_task_id
"""The number of the backward pass that is running on this thread; -1 where none is."""
_is_cached: Final[Callable[[object], bool]] = _C._is_cached_tensor
"""Return whether a compiled function returns this same tensor from each replay of a CUDA graph."""
transform_running: Final[Callable[[], Any]] = _C._functorch.peek_interpreter_stack
"""The transform that is running on this thread; None where none is."""

# Modules of PyTorch that keep the tensors that they make, such as an optimizer's state. Calls in
# them make no births.
_KEEPERS: Final = (
    "torch.amp.grad_scaler",
    "torch.distributed._state_dict_utils",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.nn.modules.lazy",
    "torch.nn.modules.module",
    "torch.optim",
)
# Functions in these modules that return the tensors that they make: their calls make births.
_HANDS_OUT: Final = frozenset({"_cast_fp_tensor", "apply_scale", "merge_chunks", "scale"})
# Single functions, in other modules, that keep what they make: a tensor for the whole process, or
# copies for a backward pass. Their calls make no births.
_CACHES: Final = frozenset(
    {
        ("torch.nested._internal.nested_tensor", "_nt_view_dummy"),
        ("torch.nested._internal.nested_tensor", "_store_val_in_tensor"),
        ("torch.utils.checkpoint", "_detach_helper"),
        # Names of earlier releases: they copy the tensors that a checkpoint keeps, or make the
        # node of the graph that saves its inputs.
        ("torch.utils.checkpoint", "_maybe_detach"),
        ("torch.utils.checkpoint", "_checkpoint_without_reentrant_generator"),
        ("torch.utils.checkpoint", "_NoopSaveInputs.forward"),
        ("torch.nn.modules.linear_cross_entropy", "_linear_cross_entropy_batch_chunked_setup_context"),
    }
)
# Further modules whose calls make no births. A function mode does not see these calls. They return
# the state of a random generator, which is kept to compute something again later, or the parameters
# of a scripted module, which existed before.
HIDDEN_KEEPERS: Final = ("torch.random", "torch.cuda.random", "torch.jit._script")
# Functions by which a module calls its ``forward``. That may be compiled and have no frame, so
# the module's caller decides whether a tensor is a birth.
_CALLS: Final = frozenset({"_call_impl", "_slow_forward", "_wrapped_call_impl"})
# Modules of PyTorch that only carry out what their caller asks for. The caller decides whether a
# tensor is a birth.
_PASSING: Final = (
    "torch._decomp",
    "torch._library",
    "torch._meta_registrations",
    "torch._ops",
    "torch._prims",
    "torch._refs",
    "torch._tensor",
    "torch.functional",
    "torch.nested._internal",
    "torch.nn.functional",
    "torch.utils._device",
    "torch.utils._stats",
)
# Functions of PyTorch that build a packed sequence. A tensor that they make becomes a member of it,
# or is freed when they return.
_COMPOSERS: Final = frozenset(
    {
        ("torch.nn.utils.rnn", "_packed_sequence_init_args"),
        ("torch.nn.utils.rnn", "pack_padded_sequence"),
        ("torch.nn.utils.rnn", "pack_sequence"),
    }
)
# Functions that `_COMPOSERS` call, and that other code may call too.
_CALLED_BY_COMPOSERS: Final = frozenset(
    {("torch.nn.utils.rnn", "invert_permutation"), ("torch.nn.utils.rnn", "pad_sequence")}
)
# Modules of fake tensors and other tensors without memory. A program makes some as results; tracing
# makes others and keeps them in the graph.
_STANDINS: Final = "torch._subclasses."
# A module of the tracer whose frames also run functions that are not traced.
_EVAL_FRAME: Final = "torch._dynamo.eval_frame"
_TRACING: Final = ("torch._dynamo.", "torch._export.", "torch._functorch.", "torch.export.", "torch.fx.")
# Modules of this library with function modes: their ``__torch_function__`` only passes calls on.
_MODE_MODULES: Final = (__name__, __name__.replace("births", "threads"))
# The verdicts on code, as in ``enum verdict`` of src/births.c. A tensor that the code makes:
#   _MAKES     is a birth
#   _KEEPS     is no birth
#   _PASSES    is judged by the next frame further out
#   _ASKS      is judged by `births_by_frames`
#   _REBUILDS  is judged by the next frame further out, while an object is copied or unpickled
#   _COMPOSES  is a birth, as part of an object that is being put together
_MAKES, _KEEPS, _PASSES, _ASKS, _REBUILDS, _COMPOSES = range(1, 7)
_REMEMBERED_AT_MOST: Final = 20_000
"""How many code objects `MAKERS` holds before it is emptied: a program may make code for ever."""
# Code whose calls make births, and code whose calls make none. The key is the id: the hash of a
# code object is computed from all of its instructions. The value keeps the code alive, so that its
# id is not used again.
MAKERS: Final[dict[int, CodeType]] = {}
_keepers: Final[dict[int, CodeType]] = {}
_HANDLE_TORCH_FUNCTION: Final = torch.overrides.handle_torch_function.__code__
_DEEPCOPY: Final[CodeType] = vars(torch.Tensor)["__deepcopy__"].__code__
# A call with a tensor of a subclass first makes a plain tensor, in `_CALL_FOR_SUBCLASS`. Then
# `_CONVERT_TO_SUBCLASS` makes the result of it. Only the result is a birth.
_CALL_FOR_SUBCLASS: Final[CodeType] = vars(torch.Tensor)["__torch_function__"].__func__.__code__
_CONVERT_TO_SUBCLASS: Final[CodeType] = _tensor._convert.__code__


def births_count(frame: FrameType | None) -> bool:
    """Return whether a tensor that a call in this frame returned is a birth.

    False outside of scopes.
    """
    scope = CURRENT.get()
    if scope is None or not (scope._direct or resolve(scope) is not None):
        return False
    if backward_running() != -1 or transform_running() is not None:
        return False
    if frame is None:
        return True
    code = frame.f_code
    if code is _HANDLE_TORCH_FUNCTION:
        # A function of PyTorch that is written in Python calls the mode through this frame and one
        # more. The frame that called the function is the next one.
        frame = frame.f_back and frame.f_back.f_back
        if frame is None:
            return True
        if frame.f_code.co_name == "deepcopy" and frame.f_globals.get("__name__") == "copy" and copies_a_module(frame):
            return False
        code = frame.f_code
    return id(code) in MAKERS or (id(code) not in _keepers and _judge_frame(frame))


def births_now() -> bool:
    """Return whether a tensor that this library makes now is a birth, as if PyTorch made it."""
    scope = CURRENT.get()
    return (
        scope is not None
        and (scope._direct or resolve(scope) is not None)
        and backward_running() == -1
        and transform_running() is None
    )


def _judge_frame(frame: FrameType) -> bool:
    """Return whether calls in a frame make births, and remember that for its code."""
    code = frame.f_code
    module = frame.f_globals.get("__name__")
    if len(MAKERS) >= _REMEMBERED_AT_MOST:
        MAKERS.clear()
    keeps = type(module) is str and keeps_births(module, code)
    (_keepers if keeps else MAKERS)[id(code)] = code
    return not keeps


def keeps_births(module: str, code: CodeType) -> bool:
    """Return whether code of PyTorch keeps the tensors that it makes: then they are no births.

    Parameters
    ----------
    module : str
        The name of the module of the code.
    """
    if (module, code.co_name) in _CACHES or (module, code.co_qualname) in _CACHES:
        return True
    return module.startswith(_KEEPERS) and code.co_name not in _HANDS_OUT


def verdict(code: CodeType, module: object) -> int:
    """Return the verdict on code in whose frame a tensor is allocated: see `_MAKES`."""
    if type(module) is not str or not module.startswith("torch."):
        return _PASSES if module in _MODE_MODULES and code.co_name == "__torch_function__" else _MAKES
    if code is _DEEPCOPY or module.startswith(_STANDINS):
        return _ASKS
    if code is _CONVERT_TO_SUBCLASS:
        return _MAKES
    if code is _CALL_FOR_SUBCLASS:
        return _KEEPS
    if module == "torch.nn.modules.module" and code.co_name in _CALLS:
        return _PASSES
    if module.startswith(HIDDEN_KEEPERS) or keeps_births(module, code):
        return _KEEPS
    if module == "torch._utils":
        return _REBUILDS
    if (module, code.co_name) in _COMPOSERS:
        return _COMPOSES
    is_passing = module.startswith(_PASSING) or (module, code.co_name) in _CALLED_BY_COMPOSERS
    return _PASSES if is_passing else _MAKES


def births_by_frames() -> bool:
    """Return whether the tensor that is being made is a birth: for code with the verdict `_ASKS`.

    A tensor copied by ``Tensor.__deepcopy__`` is none where a module is being copied: it belongs to
    the new model. A tensor without memory is none while a program is traced.
    """
    asked = _getframe(1)
    if asked.f_globals.get("__name__", "").startswith(_STANDINS):
        return not _is_tracing(asked)
    frame: FrameType | None = asked
    while frame is not None and frame.f_code is not _DEEPCOPY:
        frame = frame.f_back
    caller = None if frame is None else frame.f_back
    return caller is None or not copies_a_module(caller)


def _is_tracing(frame: FrameType | None) -> bool:
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if type(module) is str and module.startswith(_TRACING) and module != _EVAL_FRAME:
            return True
        frame = frame.f_back
    return False


def copies_a_module(frame: FrameType) -> bool:
    """Return whether ``copy.deepcopy``, given its innermost frame, is copying a module."""
    found: FrameType | None = frame
    while found is not None and found.f_globals.get("__name__") == "copy":
        if found.f_code.co_name == "deepcopy" and isinstance(variables_of(found).get("x"), torch.nn.Module):
            return True
        found = found.f_back
    return False


# Which tensors in the result of a call are new and may be owned by a scope.


_LEVELS: Final = 3
"""How many levels of lists, tuples and dicts in a result are searched for tensors."""
_SEQUENCES: Final = frozenset({list, tuple})
_ACCESSORS: Final = frozenset({"grad", "_grad", "_base", "grad_fn"})

MODELS_OWN: Final = (Parameter, UninitializedBuffer, UninitializedParameter)
"""Classes of tensors that belong to a model, never to a scope."""


class Detector(Protocol):
    """What an open leak detector is told by this module."""

    def see(self, result: Any, /) -> object:
        """Record what a compiled function or a transform returned."""

    def registered(self, module: Any, name: str, part: Any, /) -> object:
        """Record that a module was given a parameter, a buffer or another module."""

    def restored(self, module: Any, /) -> object:
        """Record that a module was copied or unpickled."""

    def given(self, optimizer: torch.optim.Optimizer, /) -> object:
        """Record an optimizer that is being made."""

    def stepped(self, optimizer: torch.optim.Optimizer, /) -> object:
        """Record a step of an optimizer."""


@final
class Seam:
    """How this process sees births, and the leak detector that is told. The instance is `SEAM`.

    Attributes
    ----------
    kind : Kind
        The kind of ``torch.Tensor``.
    at_allocation : bool
        Whether births are seen where the Python object of a tensor is allocated. Otherwise `MODE`
        sees them.
    detector : Detector, optional
        What the open leak detector has told; None where no detector is open.
    watch : BirthWatch
        The compiled part, which sees births at the allocation.
    """

    __slots__ = ("at_allocation", "detector", "kind", "watch")

    kind: Kind
    watch: BirthWatch

    def __init__(self) -> None:
        self.at_allocation = False
        self.detector: Detector | None = None


SEAM: Final = Seam()


def is_known(result: object, func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether a tensor that a call returned existed before the call.

    It is an argument, in a list or tuple given as argument, tracked by a scope, or the value of an
    attribute.
    """
    for argument in args:
        if argument is result:
            return True
    if id(result) in LIVE or (type(func) is MethodWrapperType and _accesses(func)):
        return True
    if kwargs and any(value is result for value in kwargs.values()):
        return True
    return any(type(argument) in _SEQUENCES and any(item is result for item in argument) for argument in args)


def _accesses(func: Any) -> bool:
    """Return whether a getter returns a tensor that exists already, not a new view."""
    return getattr(func.__self__, "__name__", "") in _ACCESSORS


@recording
def births_in(
    result: object, func: Any = None, args: Any = (), kwargs: Any = None, frame: FrameType | None = None
) -> MemoryError | None:
    """Record the new tensors in the result of a call as born.

    Returns
    -------
    MemoryError or None
        The error to raise where a budget refuses. Then nothing is recorded.
    """
    if SEAM.detector is not None:
        SEAM.detector.see(result)
    cls = type(result)
    if not issubclass(cls, (tuple, list, dict, Tensor)) or (type(func) is MethodWrapperType and _accesses(func)):
        return None
    leaves: list[object] = flattened(result, _LEVELS)
    fresh = [item for item in leaves if id(item) not in LIVE and is_born(type(item)) and not _is_cached(item)]
    if fresh and cls is not Tensor:
        given = {id(item) for item in flattened((args, kwargs), _LEVELS)}
        fresh = [item for item in fresh if id(item) not in given]
    if fresh and births_count(frame):
        if BUDGETS.scopes:
            refusal = refusal_of(fresh, (args, kwargs))
            if refusal is not None:
                return refusal
        for item in fresh:
            # A tensor may be twice in a result.
            if id(item) not in LIVE:
                entry = born(item, SEAM.kind)
                if _composes(frame):
                    leave_birth_open(entry)
    _compose(result, _LEVELS)
    return None


def _composes(frame: FrameType | None) -> bool:
    """Return whether the call in a frame is made by a function that builds a composite."""
    while frame is not None:
        function = frame.f_globals.get("__name__"), frame.f_code.co_name
        if function not in _CALLED_BY_COMPOSERS:
            return function in _COMPOSERS
        frame = frame.f_back
    return False


def _compose(tree: Any, levels: int) -> None:
    """Record each composite in a result, such as a packed sequence, as one resource."""
    cls: Any = type(tree)  # pyright: ignore[reportUnknownVariableType] (from Any)
    if levels < 0 or not issubclass(cls, (list, tuple, dict)):
        return
    kind = kind_of(tree) if issubclass(cls, tuple) and cls is not tuple else None
    if kind is not None and kind.is_anchored:
        compose(tree, kind)
        return
    for child in tree.values() if issubclass(cls, dict) else tree:
        _compose(child, levels - 1)


def flattened(tree: Any, levels: int) -> list[Any]:
    """Return the leaves of nested lists, tuples and dicts, down to `levels` levels."""
    cls: Any = type(tree)  # pyright: ignore[reportUnknownVariableType] (from Any)
    if cls is Tensor or levels < 0 or not issubclass(cls, (list, tuple, dict)):
        return [tree]
    leaves: list[Any] = []
    for child in tree.values() if issubclass(cls, dict) else tree:
        if type(child) is Tensor:
            leaves.append(child)
        else:
            leaves.extend(flattened(child, levels - 1))
    return leaves


def is_born(cls: type) -> bool:
    """Return whether a scope may own the instances of a class: of tensors, but no parameters."""
    return cls is Tensor or (
        issubclass(cls, Tensor) and not issubclass(cls, (*MODELS_OWN, Spare)) and can_be_disposed(cls)
    )


def given_to_a_grad(func: Any, args: Any) -> None:
    """Let no scope own a tensor that was assigned to ``.grad``."""
    if getattr(func.__self__, "__name__", "") in _ACCESSORS and len(args) > 1:
        give_up(args[1])


def give_up(tensor: object) -> None:
    """Let no scope own a tensor nor the tensors that it is made of: they belong to a model."""
    met: dict[int, object] = {}
    pending = [tensor]
    while pending:
        part = pending.pop()
        met[id(part)] = part
        belongs_to_model(part)
        kind = kind_of(part) if issubclass(type(part), Tensor) else None
        if kind is not None:
            pending += [inner for inner in kind.inner(part) if id(inner) not in met]


# How births are seen by a function mode, where the compiled part does not work.
#
# The mode sees the results of the calls that a program makes, and nothing that happens inside them.
# A mode belongs to a thread and a scope to a context, so the mode looks up the current scope at
# each birth.


# The types that most calls return that return no tensor: a quick test on the path of each call.
_PLAIN: Final = frozenset({bool, int, float, str, torch.Size, torch.dtype, torch.device, torch.layout})


class BirthMode(TorchFunctionMode):
    """Runs each call, then asks the budgets about the tensors that it made.

    Attributes
    ----------
    records : bool
        Whether it also records the births in the result and tells the leak detector: where births
        are not seen at the allocation.
    """

    records = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a call; raise what a budget answers to its result."""
        result = func(*args) if kwargs is None else func(*args, **kwargs)
        refusal: MemoryError | None = None
        if not self.records:
            if thread_state().pending:
                refusal = refusal_of_pending(result, args, kwargs)
        elif result is None:
            if type(func) is MethodWrapperType and func.__name__ == "__set__":
                given_to_a_grad(func, args)
        elif type(result) not in _PLAIN and not (type(result) is Tensor and is_known(result, func, args, kwargs)):
            refusal = births_in(result, func, args, kwargs, _getframe(1))
        if refusal is not None:
            # The traceback keeps this frame, which would keep the refused tensors alive.
            del result, args, kwargs
            try:
                raise refusal
            finally:
                del refusal
        return result


MODE: Final = BirthMode()

# How births are seen where the Python object of a tensor is allocated.
#
# PyTorch calls the allocating function of the tensor's class (``tp_alloc``), whatever made the
# tensor: an operator, a view, or a function that no mode sees, such as ``torch.from_numpy``. The
# compiled part puts its own function there, for existing classes and new ones. It decides by the
# verdicts above whether the tensor is a birth. Calls that make no tensor cost nothing, and no mode
# is needed.
#
# When the object is allocated, the tensor has no storage yet. A leak detector looks at the storage
# later: when the next tensor is made, when a scope is left, or when the detector is asked. `MODE`
# asks a budget when the call is over.


# Getters that return a tensor which exists already. The object that they make is no birth.
_ATTRIBUTES: Final = ("grad", "_grad", "_base")
# Methods that give a tensor's memory to something else. The latest tensors are looked at before.
_HANDING_ON: Final = ("data", "set_", "untyped_storage")


def _judge(code: CodeType, module: object) -> int:
    # New code often comes with new classes. A class whose metaclass does not call the `__init__` of
    # its base was not noticed when it was made.
    SEAM.watch.add_classes(tuple(_subclasses(Tensor)))
    return verdict(code, module)


def _push_mode() -> None:
    """Put `MODE` on this thread's stack: a birth was made that budgets must be asked about."""
    here = thread_state()
    # While a mode runs a call, PyTorch has it off the stack and puts it back afterwards. The stack
    # must not be changed then.
    if depth() >= len(here.modes) and not any(mode is MODE for mode in here.modes):
        add_mode(here, MODE)


def refusal_of_pending(result: object, args: Any, kwargs: Any) -> MemoryError | None:
    """Return the error to raise where a budget refuses a pending birth; None otherwise.

    The budgets are asked about the births of this thread that are in the result of the call. No
    birth is pending afterwards.
    """
    here = thread_state()
    entries = here.pending
    here.pending = []
    born = {entry.key for entry in entries if LIVE.get(entry.key) is entry}
    return refusal_of([leaf for leaf in flattened(result, _LEVELS) if id(leaf) in born], (args, kwargs))


look: Final[Callable[[], None]] = RECORDER.look
"""Look at the memory of the latest tensors, and call the listeners for those that a scope owns."""


def _subclasses(cls: Any) -> list[type]:
    found: dict[type, None] = {cls: None}
    pending: list[Any] = [cls]
    while pending:
        for below in type.__subclasses__(pending.pop()):
            if below not in found:
                found[below] = None
                pending.append(below)
    return list(found)


def see_allocations(kind: Kind) -> bool:
    """See births at the allocation from now on.

    Return False where the compiled part does not work with this PyTorch.
    """
    SEAM.watch = TORCH_COMPILED.BirthWatch(
        memory=RECORDER,
        kind=kind,
        mode=MODE,
        budgeted=BUDGETS.scopes,
        waiting=PENDING.batches,
        # The module that dispatches calls for subclasses: tensors that it passes existed before.
        passing=_tensor.__dict__,
        settle=PENDING.settle,
        is_born=is_born,
        is_overridden=torch.overrides.has_torch_function,
        judge=_judge,
        judge_frames=births_by_frames,
        give_up=give_up,
        push_mode=_push_mode,
    )
    SEAM.at_allocation = PATCHES.change(TORCH_ALLOCATION, _watch_allocations, _leave_allocations)
    return SEAM.at_allocation


def _watch_allocations() -> bool:
    try:
        attributes = tuple(getattr(_C.TensorBase, name) for name in _ATTRIBUTES)
        handing: tuple[Any, ...] = tuple(getattr(_C.TensorBase, name) for name in _HANDING_ON)
        transforms = int(_C.DispatchKey.FuncTorchDynamicLayerFrontMode)
        to_numpy: Any = _C.TensorBase.numpy
        run_backward: Any = _C._ImperativeEngine.run_backward
    except AttributeError:
        return False
    libraries = sorted(str(path) for path in (Path(torch.__file__).parent / "lib").glob("lib*"))
    seen = SEAM.watch.start(
        classes=tuple(_subclasses(Tensor)),
        metaclasses=tuple(_subclasses(type(Tensor))),
        attributes=attributes,
        numpy=to_numpy,
        handing=handing,
        backward=run_backward,
        libraries=tuple(
            path for path in libraries if "libc10." in path or "libtorch_cpu." in path or "libtorch." in path
        ),
        transforms=transforms,
    )
    # In an empty context, so that no scope owns the probes.
    missed = Context().run(_missed_births) if seen else None
    if missed is not None:
        _leave_allocations()
        PATCHES.fail(TORCH_ALLOCATION, f"{missed} was not seen")
    return seen and missed is None


def _leave_allocations() -> None:
    SEAM.watch.stop(classes=tuple(_subclasses(Tensor)), metaclasses=tuple(_subclasses(type(Tensor))))


def _missed_births() -> str | None:
    """Make a tensor in each of four ways; return the name of a way that is not seen, or None."""
    ways: dict[str, Callable[[], Tensor]] = {
        "torch.empty": lambda: torch.empty(0, device="cpu"),
        "a view": lambda: torch.empty(0, device="cpu").view(0),
        "torch.from_numpy": lambda: vars(torch)["from_numpy"](np.empty(0, np.float32)),
        "a tensor of a new subclass": lambda: Tensor._make_subclass(
            type("Probe", (Tensor,), {}), torch.empty(0, device="cpu")
        ),
    }
    with _C.DisableTorchFunction(), _C._DisableTorchDispatch():
        for name, make in ways.items():
            before = SEAM.watch.allocations
            # A view and an instance of a subclass are made of another tensor, which counts too.
            make()
            if SEAM.watch.allocations - before < (1 if name in ("torch.empty", "torch.from_numpy") else 2):
                return name
    return None


# The stack of function modes of each thread: which modes of this library are on it, and when.
#
# They are at the bottom, so that code which pops its own mode never pops one of them.


push: Final[Callable[[object], None]] = _C._push_on_torch_function_stack
pop: Final[Callable[[], Any]] = _C._pop_torch_function_stack
depth: Final[Callable[[], int]] = _C._len_torch_function_stack


class Compiled(NamedTuple):
    """A running call of a compiled function.

    The modes are off the stack until code in the call enters a scope.
    """

    frame: FrameType
    """The frame of PyTorch that makes the call."""

    open_scopes: int
    """How many scopes were open on this thread when the call began."""

    around: Compiled | None
    """The call of a compiled function around this one, where that has entered a scope."""


def is_looked_at(here: ThreadState) -> bool:
    """Return whether a scope or a leak detector records the tensors made on this thread."""
    return here.watched or SEAM.detector is not None or CURRENT.get() is not None


def add_mode(here: ThreadState, mode: object) -> None:
    """Have a mode on this thread's stack from now on.

    `MODE` is put above the others, so that it looks at the result of a call after them.
    """
    others = here.modes
    here.modes = (*others, mode) if mode is MODE else (mode, *others)
    here.watched = True
    if not here.stepping and not here.runs_compiled:
        if depth() == len(others) and (mode is MODE or not others):
            # The quick way: the mode is to be on top, and no mode of other code is on the stack.
            push(mode)
        else:
            take_off()
            put_on()


def remove_mode(here: ThreadState, mode: object) -> None:
    """Have a mode on this thread's stack no more. After an interrupt it can be called again."""
    if not any(other is mode for other in here.modes):
        return
    others = tuple(other for other in here.modes if other is not mode)
    if not here.stepping and not here.runs_compiled:
        if here.modes[-1] is mode and depth() == len(here.modes):
            pop()
        else:
            _remove_from_stack(here.modes)
            _insert_at_bottom(others)
    here.modes = others
    here.watched = bool(others)


TRACING: Final = 1
"""Bit set in ``ThreadState.stepping`` where births are paused by a frame that traces a program.

The id of a frame is an address and even, so the bit is free. A leak detector does not record the
tensors that the tracing makes.
"""


def pause_births(reason: int) -> None:
    """Let a frame make no births while it runs; take the modes off this thread's stack.

    Parameters
    ----------
    reason : int
        The id of the frame, with the bit `TRACING` where it traces a program.
    """
    here = thread_state()
    if not here.stepping:
        here.stepping = reason
        if here.watched and not here.runs_compiled:
            take_off()


def resume_births(here: ThreadState, reason: int) -> None:
    """End what `pause_births` began for the same reason: the frame has ended."""
    if not reason or here.stepping != reason:
        return
    here.stepping = 0
    if here.watched and not here.runs_compiled and here is thread_state():
        put_on()


def resume_after_a_failed_step(here: ThreadState) -> None:
    """Resume births where the frame that paused them is not running any more.

    It ended with an exception whose traceback may still keep the frame.
    """
    frame: FrameType | None = _getframe(1)
    while frame is not None:
        if id(frame) == here.stepping & ~TRACING:
            return
        frame = frame.f_back
    resume_births(here, here.stepping)


def put_on() -> None:
    """Put the modes at the bottom of this thread's stack, above the mode of a default device.

    PyTorch needs the mode of a default device at the very bottom.
    """
    _insert_at_bottom(thread_state().modes)


def _insert_at_bottom(modes: tuple[object, ...]) -> None:
    if not modes:
        return
    if not depth():
        for mode in modes:
            push(mode)
        return
    above = [pop() for _ in range(depth())]
    if above and isinstance(above[-1], DeviceContext):
        push(above.pop())
    for mode in modes:
        push(mode)
    for mode in reversed(above):
        push(mode)


def take_off() -> bool:
    """Take the modes off this thread's stack; return whether one was there."""
    return _remove_from_stack(thread_state().modes)


def _remove_from_stack(modes: tuple[object, ...]) -> bool:
    if len(modes) == 1 and depth() == 1:
        only = pop()
        if only is not modes[0]:
            push(only)
            return False
        return True
    above: list[Any] = []
    left_to_find = len(modes)
    while left_to_find and depth():
        mode = pop()
        if any(mode is ours for ours in modes):
            left_to_find -= 1
        else:
            above.append(mode)
    for mode in reversed(above):
        push(mode)
    return left_to_find < len(modes)
