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
from ...scopes.compiled import leave_birth_open
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

# Whether what a call of PyTorch made is a birth, by what is going on and by the code that called.


_C: Final[Any] = torch._C
_tensor: Final[Any] = import_module("torch._tensor")
backward_running: Final[Callable[[], int]] = _C._current_graph_task_id
"""The number of the backward pass that is running on this thread; -1 where none is."""
_is_cached: Final[Callable[[object], bool]] = _C._is_cached_tensor
"""Return whether each run of a compiled function that is in a CUDA graph hands out this tensor."""
transform_running: Final[Callable[[], Any]] = _C._functorch.peek_interpreter_stack
"""The transform that is running on this thread; None where none is."""

# Code of PyTorch itself that keeps what it makes: its calls make no births. The verdict on each
# code is remembered.
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
# What these functions make there is a result.
_HANDS_OUT: Final = frozenset({"_cast_fp_tensor", "apply_scale", "merge_chunks", "scale"})
# Functions that make a tensor once and keep it for the process, and others that keep copies for a
# backward pass.
_CACHES: Final = frozenset(
    {
        ("torch.nested._internal.nested_tensor", "_nt_view_dummy"),
        ("torch.nested._internal.nested_tensor", "_store_val_in_tensor"),
        ("torch.utils.checkpoint", "_detach_helper"),
        # Earlier releases: copies of what is kept, and the tensors of the node that saves the
        # inputs.
        ("torch.utils.checkpoint", "_maybe_detach"),
        ("torch.utils.checkpoint", "_checkpoint_without_reentrant_generator"),
        ("torch.utils.checkpoint", "_NoopSaveInputs.forward"),
        ("torch.nn.modules.linear_cross_entropy", "_linear_cross_entropy_batch_chunked_setup_context"),
    }
)
# What a mode does not see: states of generators, which are kept for what is computed again later,
# and the parameters of a compiled module, which were there.
HIDDEN_KEEPERS: Final = ("torch.random", "torch.cuda.random", "torch.jit._script")
# What a module calls may be compiled, and without a frame of its own.
_CALLS: Final = frozenset({"_call_impl", "_slow_forward", "_wrapped_call_impl"})
# Code of PyTorch that only does what its caller wants: it is judged by the caller.
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
# Code of PyTorch that puts a packed sequence together. What it makes is a member of that, or goes
# when it returns.
_COMPOSERS: Final = frozenset(
    {
        ("torch.nn.utils.rnn", "_packed_sequence_init_args"),
        ("torch.nn.utils.rnn", "pack_padded_sequence"),
        ("torch.nn.utils.rnn", "pack_sequence"),
    }
)
# What it calls there, as others may.
_CALLED_BY_COMPOSERS: Final = frozenset(
    {("torch.nn.utils.rnn", "invert_permutation"), ("torch.nn.utils.rnn", "pad_sequence")}
)
# Tensors without memory, which stand for others: also what a graph is made with, and keeps.
_STANDINS: Final = "torch._subclasses."
# In whose frames functions run that are not to be compiled.
_ASIDE: Final = "torch._dynamo.eval_frame"
_TRACING: Final = ("torch._dynamo.", "torch._export.", "torch._functorch.", "torch.export.", "torch.fx.")
# Our modes pass calls on.
_OURS: Final = (__name__, __name__.replace("births", "threads"))
_MAKES, _KEEPS, _PASSES, _ASKS, _REBUILDS, _COMPOSES = range(1, 7)
_REMEMBERED_AT_MOST: Final = 20_000
MAKERS: Final[dict[int, CodeType]] = {}
_keepers: Final[dict[int, CodeType]] = {}
"""Code by its id, which is safe because it is held here.

The hash of a code object is that of its instructions.
"""
_THROUGH: Final = torch.overrides.handle_torch_function.__code__
_DEEPCOPY: Final[CodeType] = vars(torch.Tensor)["__deepcopy__"].__code__
# A call for a subclass makes a plain tensor, and of that, elsewhere, one of the subclass: that one
# is the result.
_FOR_A_SUBCLASS: Final[CodeType] = vars(torch.Tensor)["__torch_function__"].__func__.__code__
_OF_A_SUBCLASS: Final[CodeType] = _tensor._convert.__code__


def births_count(frame: FrameType | None) -> bool:
    """Return whether what a call made in a frame returns is a birth; False outside of scopes."""
    scope = CURRENT.get()
    if scope is None or not (scope._direct or resolve(scope) is not None):
        return False
    if backward_running() != -1 or transform_running() is not None:
        return False
    if frame is None:
        return True
    code = frame.f_code
    if code is _THROUGH:
        # A function of PyTorch that is written in Python comes here through two frames of PyTorch's
        # own.
        frame = frame.f_back and frame.f_back.f_back
        if frame is None:
            return True
        if frame.f_code.co_name == "deepcopy" and frame.f_globals.get("__name__") == "copy" and copies_a_module(frame):
            return False
        code = frame.f_code
    return id(code) in MAKERS or (id(code) not in _keepers and _judge_frame(frame))


def births_now() -> bool:
    """Return whether what this library makes now is born, by the rules for calls of PyTorch's."""
    scope = CURRENT.get()
    return (
        scope is not None
        and (scope._direct or resolve(scope) is not None)
        and backward_running() == -1
        and transform_running() is None
    )


def _judge_frame(frame: FrameType) -> bool:
    """Return whether calls in a frame make births.

    They make none where its code is PyTorch's own, and keeps what it makes.
    """
    code = frame.f_code
    module = frame.f_globals.get("__name__")
    if len(MAKERS) >= _REMEMBERED_AT_MOST:
        MAKERS.clear()
    keeps = type(module) is str and keeps_births(module, code)
    (_keepers if keeps else MAKERS)[id(code)] = code
    return not keeps


def keeps_births(module: str, code: CodeType) -> bool:
    """Return whether code, given with its module's name, is PyTorch's and keeps what it makes."""
    if (module, code.co_name) in _CACHES or (module, code.co_qualname) in _CACHES:
        return True
    return module.startswith(_KEEPERS) and code.co_name not in _HANDS_OUT


def verdict(code: CodeType, module: object) -> int:
    """Return what code is to births seen where they happen: a number of ``enum verdict``."""
    if type(module) is not str or not module.startswith("torch."):
        return _PASSES if module in _OURS and code.co_name == "__torch_function__" else _MAKES
    if code is _DEEPCOPY or module.startswith(_STANDINS):
        return _ASKS
    if code is _OF_A_SUBCLASS:
        return _MAKES
    if code is _FOR_A_SUBCLASS:
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
    """Return whether what runs now makes a birth, where its code alone does not decide it.

    What ``Tensor.__deepcopy__`` makes is none in the copy of a module, which is the model's; what
    stands for a tensor is none while a graph is made.
    """
    asked = _getframe(1)
    if asked.f_globals.get("__name__", "").startswith(_STANDINS):
        return not _makes_a_graph(asked)
    frame: FrameType | None = asked
    while frame is not None and frame.f_code is not _DEEPCOPY:
        frame = frame.f_back
    caller = None if frame is None else frame.f_back
    return caller is None or not copies_a_module(caller)


def _makes_a_graph(frame: FrameType | None) -> bool:
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if type(module) is str and module.startswith(_TRACING) and module != _ASIDE:
            return True
        frame = frame.f_back
    return False


def copies_a_module(frame: FrameType) -> bool:
    """Return whether ``copy.deepcopy``, given its innermost frame, is at work on a module."""
    found: FrameType | None = frame
    while found is not None and found.f_globals.get("__name__") == "copy":
        if found.f_code.co_name == "deepcopy" and isinstance(found.f_locals.get("x"), torch.nn.Module):
            return True
        found = found.f_back
    return False


# What a call of PyTorch returned: what of it is new and may be owned by a scope.


_LEVELS: Final = 3
"""How deep in lists, tuples and dicts the tensors of a result are."""
_SEQUENCES: Final = frozenset({list, tuple})
_ACCESSORS: Final = frozenset({"grad", "_grad", "_base", "grad_fn"})

MODELS_OWN: Final = (Parameter, UninitializedBuffer, UninitializedParameter)
"""Classes of tensors that are a model's."""


class Detector(Protocol):
    """What is called at births while a leak detector is open."""

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
    """How births are seen in this process, and by whom. The one instance is `SEAM`.

    Attributes
    ----------
    kind : Kind
        The kind of ``torch.Tensor``.
    at_allocation : bool
        Whether births are seen where the Python object of a tensor is allocated; by the mode
        otherwise.
    detector : Detector, optional
        What an open leak detector watches with; None where none is open.
    watch : BirthWatch
        What sees births at the allocation.
    """

    __slots__ = ("at_allocation", "detector", "kind", "watch")

    kind: Kind
    watch: BirthWatch

    def __init__(self) -> None:
        self.at_allocation = False
        self.detector: Detector | None = None


SEAM: Final = Seam()


def is_known(result: object, func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether a tensor that a call returned was there before.

    It is an argument, in an argument, tracked, or an attribute.
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
    """Return whether a getter returns what is there already."""
    return getattr(func.__self__, "__name__", "") in _ACCESSORS


@recording
def births_in(
    result: object, func: Any = None, args: Any = (), kwargs: Any = None, frame: FrameType | None = None
) -> MemoryError | None:
    """Record as born what is new in what a call returned: a tensor, or a container of tensors.

    Returns
    -------
    MemoryError or None
        What to raise where a budget refuses; then nothing is recorded.
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
            # A result may be there twice.
            if id(item) not in LIVE:
                entry = born(item, SEAM.kind)
                if _composes(frame):
                    leave_birth_open(entry)
    _compose(result, _LEVELS)
    return None


def _composes(frame: FrameType | None) -> bool:
    """Return whether a call in a frame is one of the code that puts a composite together."""
    while frame is not None:
        code = frame.f_globals.get("__name__"), frame.f_code.co_name
        if code not in _CALLED_BY_COMPOSERS:
            return code in _COMPOSERS
        frame = frame.f_back
    return False


def _compose(tree: Any, levels: int) -> None:
    """Make one resource of each tuple in a result that is of a kind, such as a packed sequence."""
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
    """Return the leaves of nested lists, tuples and dicts, down to a number of levels."""
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
    """Return whether a scope may own the instances of a class.

    It may own tensors that can be disposed, but no parameters.
    """
    return cls is Tensor or (
        issubclass(cls, Tensor) and not issubclass(cls, (*MODELS_OWN, Spare)) and can_be_disposed(cls)
    )


def given_to_a_grad(func: Any, args: Any) -> None:
    """Give a tensor that is assigned to ``.grad`` to the parameter."""
    if getattr(func.__self__, "__name__", "") in _ACCESSORS and len(args) > 1:
        give_up(args[1])


def give_up(tensor: object) -> None:
    """Let no scope own a tensor, nor what it is made of: it is the model's."""
    met: dict[int, object] = {}
    pending = [tensor]
    while pending:
        part = pending.pop()
        met[id(part)] = part
        belongs_to_model(part)
        kind = kind_of(part) if issubclass(type(part), Tensor) else None
        if kind is not None:
            pending += [inner for inner in kind.inner(part) if id(inner) not in met]


# Seeing births by a function mode that asks of each call whose birth it is, where the compiled part
# cannot.
#
# The mode sees what calls of user-level code return, and nothing of what happens inside such a
# call. Modes are per thread and scopes per context, so the mode asks for the current scope at each
# birth.


# Most calls that return no tensor return one of these.
_PLAIN: Final = frozenset({bool, int, float, str, torch.Size, torch.dtype, torch.device, torch.layout})


class BirthMode(TorchFunctionMode):
    """The mode: lets every call through, and asks the budgets about what it made.

    Attributes
    ----------
    records : bool
        Whether it records what calls return as born and has a leak detector hear of it: where
        births are not seen at the allocation.
    """

    records = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, and do that."""
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
            # This frame is in its traceback: kept here, what was refused would live on.
            del result, args, kwargs
            try:
                raise refusal
            finally:
                del refusal
        return result


MODE: Final = BirthMode()

# Seeing births where the Python object of a tensor gets its memory: each one, and nothing else.
#
# PyTorch makes the Python object of a tensor by the allocating function of its class, whatever made
# the tensor: an operator, a view, a function without a seam such as ``torch.from_numpy``. The
# compiled part stands in that place, for the classes that are there and those to come, and asks
# whose the tensor will be: calls that make none cost nothing, and no mode is on any stack. The
# rules are those above, less what a mode cannot see.
#
# At that moment there is an address and no memory yet. A leak detector looks at the storage of the
# new tensor a moment later: when the next one is made, when a scope is left, or when it is asked.
# A budget is asked when the call is over, by the mode.


_ATTRIBUTES: Final = ("grad", "_grad", "_base")
_HANDING: Final = ("data", "set_", "untyped_storage")


def _judge(code: CodeType, module: object) -> int:
    # Code that is new often comes with classes that are. Of one whose class does not call
    # `__init__` of its own base nobody has heard before.
    SEAM.watch.add_classes(tuple(_subclasses(Tensor)))
    return verdict(code, module)


def _push_mode() -> None:
    """Put the mode on this thread: it makes a birth that budgets are to be asked about."""
    here = thread_state()
    # While a mode lets a call through it is off the stack: then is no time to change that.
    if depth() >= len(here.modes) and not any(mode is MODE for mode in here.modes):
        add_mode(here, MODE)


def refusal_of_pending(result: object, args: Any, kwargs: Any) -> MemoryError | None:
    """Return what to raise where a budget refuses a pending birth of this thread; None otherwise.

    Those in the result of the call are asked about. No birth is pending afterwards.
    """
    here = thread_state()
    entries = here.pending
    here.pending = []
    born = {entry.key for entry in entries if LIVE.get(entry.key) is entry}
    return refusal_of([leaf for leaf in flattened(result, _LEVELS) if id(leaf) in born], (args, kwargs))


look: Final[Callable[[], None]] = RECORDER.look
"""Look at the memory of the tensors made last, and call the listeners for those a scope owns."""


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
    """See births so from now on; False where the compiled part does not know this PyTorch."""
    SEAM.watch = TORCH_COMPILED.BirthWatch(
        memory=RECORDER,
        kind=kind,
        mode=MODE,
        budgeted=BUDGETS.scopes,
        waiting=PENDING.batches,
        # What it hands over of a tensor of a subclass was there before.
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
        handing: tuple[Any, ...] = tuple(getattr(_C.TensorBase, name) for name in _HANDING)
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
    # In a context of its own: in no scope.
    missed = Context().run(_missed_births) if seen else None
    if missed is not None:
        _leave_allocations()
        PATCHES.fail(TORCH_ALLOCATION, f"{missed} was not seen")
    return seen and missed is None


def _leave_allocations() -> None:
    SEAM.watch.stop(classes=tuple(_subclasses(Tensor)), metaclasses=tuple(_subclasses(type(Tensor))))


def _missed_births() -> str | None:
    """Return which of a few births, by C++ and by Python, is not seen; None where all are."""
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
            # The last one is that which was asked for; others are made on the way.
            make()
            if SEAM.watch.allocations - before < (1 if name in ("torch.empty", "torch.from_numpy") else 2):
                return name
    return None


# The stack of modes of each thread: what belongs onto it, and when it is off it.
#
# The mode for births stands at the bottom, where nobody who pops his own mode meets it.


push: Final[Callable[[object], None]] = _C._push_on_torch_function_stack
pop: Final[Callable[[], Any]] = _C._pop_torch_function_stack
depth: Final[Callable[[], int]] = _C._len_torch_function_stack


class Compiled(NamedTuple):
    """A call of a compiled function that is running.

    The mode is off the stack until the call enters a scope itself.
    """

    frame: FrameType
    """The frame of PyTorch's that makes the call."""

    open_scopes: int
    """How many scopes had been entered on this thread before."""

    around: Compiled | None
    """The call in whose scope this one is made."""


def is_looked_at(here: ThreadState) -> bool:
    """Return whether a scope or a leak detector records what is made on this thread."""
    return here.watched or SEAM.detector is not None or CURRENT.get() is not None


def add_mode(here: ThreadState, mode: object) -> None:
    """Have a mode on this thread's stack from now on.

    `MODE` stands above the others, for it shall see births after them.
    """
    others = here.modes
    here.modes = (*others, mode) if mode is MODE else (mode, *others)
    here.watched = True
    if not here.stepping and not here.runs_compiled:
        if depth() == len(others) and (mode is MODE or not others):
            # The quick way: there is nothing to be put below another.
            push(mode)
        else:
            take_off()
            put_on()


def remove_mode(here: ThreadState, mode: object) -> None:
    """Have a mode on this thread's stack no more. Can be called again where it was interrupted."""
    if not any(other is mode for other in here.modes):
        return
    others = tuple(other for other in here.modes if other is not mode)
    if not here.stepping and not here.runs_compiled:
        if here.modes[-1] is mode and depth() == len(here.modes):
            pop()
        else:
            _take_off(here.modes)
            _put_on(others)
    here.modes = others
    here.watched = bool(others)


TRACING: Final = 1
"""Added to the id of a frame that traces a program.

A detector leaves the tensors of the program to it.
"""


def pause_births(reason: int) -> None:
    """Take the mode off this thread's stack while a frame, given by its id, is running.

    The calls of the frame make no births.
    """
    here = thread_state()
    if not here.stepping:
        here.stepping = reason
        if here.watched and not here.runs_compiled:
            take_off()


def resume_births(here: ThreadState, reason: int) -> None:
    """Put the mode back where births were paused for a frame, which is over."""
    if not reason or here.stepping != reason:
        return
    here.stepping = 0
    if here.watched and not here.runs_compiled and here is thread_state():
        put_on()


def resume_after_a_failed_step(here: ThreadState) -> None:
    """Put the mode back where the frame for which births were paused runs no more.

    A traceback may keep such a frame.
    """
    frame: FrameType | None = _getframe(1)
    while frame is not None:
        if id(frame) == here.stepping & ~TRACING:
            return
        frame = frame.f_back
    resume_births(here, here.stepping)


def put_on() -> None:
    """Put the modes at the bottom of this thread's stack, but above that of a default device.

    The mode of a default device must be at the very bottom.
    """
    _put_on(thread_state().modes)


def _put_on(modes: tuple[object, ...]) -> None:
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
    return _take_off(thread_state().modes)


def _take_off(modes: tuple[object, ...]) -> bool:
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
