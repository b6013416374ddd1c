"""Seeing births: a function mode on each thread on which a scope is open, which asks whose birth it is.

The mode sees what calls of user-level code return, and nothing of what happens inside such a call. Modes are per
thread and scopes per context, so the mode asks for the current scope at each birth. It stands at the bottom of the
stack of modes, where nobody who pops his own mode meets it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from operator import attrgetter
from sys import _getframe, getrefcount
from types import CodeType, FrameType, MethodWrapperType
from typing import Any, Final, final

import torch
from torch import Tensor
from torch.nn.parameter import Parameter, UninitializedBuffer, UninitializedParameter
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from ..scopes._births import born
from ..scopes._current import CLOSED, CURRENT, current_scope, resolve
from ..scopes._entry import LIVE, entry_of
from ..scopes._instruments import ENTERED, LEFT
from ..scopes._kinds import Kind
from ..scopes._scope import DisposeScope
from ..scopes._scope_view import ScopeView
from ._charges import BUDGETED, watch_budget, watch_no_more
from ._torch_charges import refusal_of
from ._torch_disposal import PINNED, can_be_disposed, drop_pinned
from ._torch_extension import TORCH_HOT

__all__ = [
    "LOCAL",
    "MODE",
    "SIGHTINGS",
    "add_mode",
    "births_in",
    "births_now",
    "copies_a_module",
    "give_up",
    "keeps_births",
    "pause_births",
    "put_on",
    "remove_mode",
    "resume_after_a_failed_step",
    "resume_births",
    "see_births",
    "take_off",
]

_C: Final[Any] = torch._C
_push: Final[Callable[[object], None]] = _C._push_on_torch_function_stack
_pop: Final[Callable[[], Any]] = _C._pop_torch_function_stack
_depth: Final[Callable[[], int]] = _C._len_torch_function_stack
_backward_running: Final[Callable[[], int]] = _C._current_graph_task_id
_transform_running: Final[Callable[[], Any]] = _C._functorch.peek_interpreter_stack

_SEQUENCES: Final = frozenset({list, tuple})
_ACCESSORS: Final = frozenset({"grad", "_grad", "_base", "grad_fn"})
# Most calls that return no tensor return one of these.
_PLAIN: Final = frozenset({bool, int, float, str, torch.Size, torch.dtype, torch.device, torch.layout})

_KIND: Final[list[Kind]] = []
"""The kind of ``torch.Tensor``, once `see_births` has been told."""

SIGHTINGS: Final[list[Callable[[Any, Any, Any, Any], object]]] = []
"""Told of what compiled functions and transforms return, and their arguments, while a leak detector is open."""


@final
class ThreadState:
    """What is so on one thread.

    Attributes
    ----------
    scopes : list of DisposeScope
        The scopes that were entered on it and not left.
    modes : tuple
        What belongs onto the thread's stack of modes, the bottom first: the mode for births where a scope is open, and
        what a leak detector watches with.
    watched : bool
        Whether there are any.
    compiled : frame, optional
        The frame of the outermost call of a compiled function, during which the mode is off the stack all the same.
    stepping : int
        The id of the frame of the outermost optimizer step that is running, during which the mode is off the stack as
        well; 0 where none is. Not the frame: it shall die when the step is over.
    """

    __slots__ = ("__weakref__", "compiled", "modes", "scopes", "stepping", "watched")

    scopes: list[DisposeScope]
    modes: tuple[object, ...]
    watched: bool
    compiled: FrameType | None
    stepping: int

    def __init__(self) -> None:
        self.scopes = []
        self.modes = ()
        self.watched = False
        self.compiled = None
        self.stepping = 0


class _Local(threading.local):
    def __init__(self) -> None:
        self.here = ThreadState()


LOCAL: Final = _Local()
"""``LOCAL.here`` is the state of the calling thread."""

# Code of PyTorch itself that keeps what it makes: its calls make no births. The verdict on each code is remembered.
_KEEPERS: Final = ("torch.optim", "torch.nn.modules.module", "torch.nn.modules.lazy", "torch.amp.grad_scaler")
_HANDS_OUT: Final = frozenset({"scale", "apply_scale"})
# Functions that make a tensor once and keep it for the process.
_CACHES: Final = frozenset({("torch.nested._internal.nested_tensor", "_nt_view_dummy")})
_REMEMBERED_AT_MOST: Final = 20_000
_makers: Final[dict[int, CodeType]] = {}
_keepers: Final[dict[int, CodeType]] = {}
"""Code by its id, which is safe because it is held here: the hash of a code object is that of its instructions."""
_THROUGH: Final = torch.overrides.handle_torch_function.__code__


def _references(func: Any, args: Any) -> int:
    result = func(*args)
    return getrefcount(result)


def _references_to_a_fresh_result(references: Callable[[Any, tuple[Any, ...]], int]) -> int:
    """What is counted, in the hot path, of a tensor that nobody else has; 0 where that is no test."""
    with _C.DisableTorchFunction(), torch.inference_mode(False), torch.enable_grad():
        weight: Any = torch.zeros(1, requires_grad=True)
        weight.sum().backward()
        fresh = references(torch.exp, (weight,))
        accessed = references(attrgetter("grad"), (weight,))
        returned = references(torch.Tensor.detach_, (torch.zeros(1),))
    return fresh if fresh < min(accessed, returned) else 0


# A gradient, a base or an argument that a call returns is held by somebody; what a call made is held by nobody yet.
_FRESH: Final = _references_to_a_fresh_result(_references)


class BirthMode(TorchFunctionMode):
    """The mode: lets every call through, and records what it returned as born."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, and record its result."""
        # The hot path of every call of PyTorch inside a scope.
        result = func(*args) if kwargs is None else func(*args, **kwargs)
        cls: Any = type(result)  # pyright: ignore[reportUnknownVariableType] (from Any)
        if cls is Tensor:
            scope = CURRENT.get()
            if scope is None:
                return result
            if getrefcount(result) != _FRESH and _is_known(result, func, args, kwargs):
                return result
            frame = _getframe(1)
            if (
                scope._direct
                and id(frame.f_code) in _makers
                and _backward_running() == -1
                and _transform_running() is None
            ) or _births_count(frame):
                if BUDGETED:
                    refusal = refusal_of([result], (args, kwargs))
                    if refusal is not None:
                        # This frame is in its traceback: kept here, what was refused would live on.
                        del result
                        try:
                            raise refusal
                        finally:
                            del refusal
                born(result, _KIND[0])
        elif result is None:
            if type(func) is MethodWrapperType and func.__name__ == "__set__":
                _given_to_a_grad(func, args)
        elif cls not in _PLAIN and CURRENT.get() is not None:
            refusal = births_in(result, func, args, kwargs, _getframe(1))
            if refusal is not None:
                del result
                try:
                    raise refusal
                finally:
                    del refusal
        return result


MODE: Final = BirthMode()


def _assigned(func: Any, args: Any) -> None:
    if func.__name__ == "__set__":
        _given_to_a_grad(func, args)


def _quicken(kind: Kind) -> None:
    """Let the compiled handler do what the mode does in Python, where there is one."""
    if TORCH_HOT is None:
        return
    TORCH_HOT.bind_births(
        {
            "CURRENT": CURRENT,
            "MethodWrapperType": MethodWrapperType,
            "ScopeView": ScopeView,
            "Tensor": Tensor,
            "assigned": _assigned,
            "backward_running": _backward_running,
            "births_count": _births_count,
            "births_in": births_in,
            "born": born,
            "budgeted": BUDGETED,
            "fresh": _references_to_a_fresh_result(TORCH_HOT.references),
            "is_known": _is_known,
            "kind": kind,
            "makers": _makers,
            "plain": tuple(_PLAIN),
            "refusal_of": refusal_of,
            "through": _THROUGH,
            "transform_running": _transform_running,
        }
    )
    mode: Any = MODE
    mode.__torch_function__ = TORCH_HOT.handler_of(mode)


def _births_count(frame: FrameType | None) -> bool:
    """Whether what a call made in a frame returns is a birth, given that a scope is entered in this context."""
    scope = CURRENT.get()
    if scope is None or not (scope._direct or resolve(scope) is not None):
        return False
    if _backward_running() != -1 or _transform_running() is not None:
        return False
    if frame is None:
        return True
    code = frame.f_code
    if code is _THROUGH:
        # A function of PyTorch that is written in Python comes here through two frames of PyTorch's own.
        frame = frame.f_back and frame.f_back.f_back
        if frame is None:
            return True
        if frame.f_code.co_name == "deepcopy" and frame.f_globals.get("__name__") == "copy" and copies_a_module(frame):
            return False
        code = frame.f_code
    return id(code) in _makers or (id(code) not in _keepers and _judge(frame))


def births_now() -> bool:
    """Whether what a function of this library makes now is born, by the rules for what a call of PyTorch's makes."""
    return _births_count(None)


def _judge(frame: FrameType) -> bool:
    """Whether what the code of a frame calls makes births: not where it is PyTorch's own, and keeps what it makes."""
    code = frame.f_code
    module = frame.f_globals.get("__name__")
    if len(_makers) >= _REMEMBERED_AT_MOST:
        _makers.clear()
    keeps = type(module) is str and keeps_births(module, code)
    (_keepers if keeps else _makers)[id(code)] = code
    return not keeps


def keeps_births(module: str, code: CodeType) -> bool:
    """Whether code, given with the name of its module, is PyTorch's own and keeps what it makes."""
    if (module, code.co_name) in _CACHES:
        return True
    return module.startswith(_KEEPERS) and code.co_name not in _HANDS_OUT


def copies_a_module(frame: FrameType) -> bool:
    """Whether ``copy.deepcopy``, given its innermost frame, is at work on a module."""
    found: FrameType | None = frame
    while found is not None and found.f_globals.get("__name__") == "copy":
        if found.f_code.co_name == "deepcopy" and isinstance(found.f_locals.get("x"), torch.nn.Module):
            return True
        found = found.f_back
    return False


def _is_known(result: object, func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a tensor that a call returned was there before: an argument, in one, tracked, or an attribute."""
    for argument in args:
        if argument is result:
            return True
    if id(result) in LIVE or (type(func) is MethodWrapperType and _accesses(func)):
        return True
    if kwargs and any(value is result for value in kwargs.values()):
        return True
    return any(type(argument) in _SEQUENCES and any(item is result for item in argument) for argument in args)


def _accesses(func: Any) -> bool:
    """Whether a getter returns what is there already."""
    return getattr(func.__self__, "__name__", "") in _ACCESSORS


def births_in(
    result: object, func: Any = None, args: Any = (), kwargs: Any = None, frame: FrameType | None = None
) -> MemoryError | None:
    """Record the tensors in what a call returned, which is no plain tensor: a container, or a tensor of a subclass.

    Returns
    -------
    MemoryError or None
        What to raise where a budget refuses; then nothing is recorded.
    """
    for see in SIGHTINGS:
        see(result, func, args, kwargs)
    cls = type(result)
    if not issubclass(cls, (tuple, list, dict, Tensor)) or (type(func) is MethodWrapperType and _accesses(func)):
        return None
    fresh = [item for item in _flattened(result, 3) if id(item) not in LIVE and _can_be_born(item)]
    if not fresh:
        return None
    given = {id(item) for item in _flattened((args, kwargs), 3)}
    fresh = [item for item in fresh if id(item) not in given]
    if fresh and _births_count(frame):
        if BUDGETED:
            refusal = refusal_of(fresh, (args, kwargs))
            if refusal is not None:
                return refusal
        kind = _KIND[0]
        for item in fresh:
            # A result may be there twice.
            if id(item) not in LIVE:
                born(item, kind)
    return None


def _flattened(tree: Any, levels: int) -> list[Any]:
    """The leaves of nested lists, tuples and dicts, as far down as a result of PyTorch goes."""
    cls: Any = type(tree)  # pyright: ignore[reportUnknownVariableType] (from Any)
    if cls is Tensor or levels < 0 or not issubclass(cls, (list, tuple, dict)):
        return [tree]
    leaves: list[Any] = []
    for child in tree.values() if issubclass(cls, dict) else tree:
        if type(child) is Tensor:
            leaves.append(child)
        else:
            leaves.extend(_flattened(child, levels - 1))
    return leaves


def _can_be_born(thing: object) -> bool:
    """Whether a scope may own an object: a tensor that is no parameter, and can go dead."""
    cls = type(thing)
    return cls is Tensor or (
        issubclass(cls, Tensor)
        and not issubclass(cls, (Parameter, UninitializedBuffer, UninitializedParameter))
        and can_be_disposed(cls)
    )


def _given_to_a_grad(func: Any, args: Any) -> None:
    """A tensor that is assigned to ``.grad`` belongs to the parameter."""
    if getattr(func.__self__, "__name__", "") in _ACCESSORS and len(args) > 1:
        give_up(args[1])


def give_up(tensor: object) -> None:
    """Let no scope own a tensor: it is the model's."""
    entry = entry_of(tensor)
    if entry is not None and entry.owner is not None and entry.unit is None:
        entry.owner.detach(tensor)


# ---------------------------------------------------------------------- the mode's life on a thread


def entered(scope: DisposeScope) -> None:
    """Watch this thread from now on, where it is not watched already."""
    here = LOCAL.here
    if here.stepping:
        resume_after_a_failed_step(here)
    here.scopes.append(scope)
    watch_budget(scope)
    if not here.modes or here.modes[-1] is not MODE:
        add_mode(here, MODE)


def left(scope: DisposeScope) -> None:
    """Stop watching when the last of the scopes that were entered on this thread is left."""
    watch_no_more(scope)
    here = LOCAL.here
    scopes = here.scopes
    if scopes and scopes[-1] is scope:
        scopes.pop()
    elif scope in scopes:
        scopes.remove(scope)
    else:
        # It was entered on another thread, which finds it closed when it enters or leaves one of its own.
        return
    while scopes and scopes[-1]._state == CLOSED:
        scopes.pop()
    if not scopes:
        remove_mode(here, MODE)
    if PINNED:
        drop_pinned()


def add_mode(here: ThreadState, mode: object) -> None:
    """Have a mode on this thread's stack from now on; `MODE` above the others, for it shall see births after them."""
    others = here.modes
    here.modes = (*others, mode) if mode is MODE else (mode, *others)
    here.watched = True
    if here.compiled is None and not here.stepping:
        if _depth() == len(others) and (mode is MODE or not others):
            # The quick way: there is nothing to be put below another.
            _push(mode)
        else:
            take_off()
            put_on()


def remove_mode(here: ThreadState, mode: object) -> None:
    """Have a mode on this thread's stack no more."""
    if not any(other is mode for other in here.modes):
        return
    quick = here.modes[-1] is mode and _depth() == len(here.modes)
    before = here.modes
    here.modes = tuple(other for other in before if other is not mode)
    here.watched = bool(here.modes)
    if here.compiled is None and not here.stepping:
        if quick:
            _pop()
        else:
            _take_off(before)
            put_on()


def pause_births(reason: int) -> None:
    """Take the mode off this thread's stack while a frame, given by its id, is running: its calls make no births."""
    here = LOCAL.here
    if not here.stepping:
        here.stepping = reason
        if here.watched and here.compiled is None:
            take_off()


def resume_births(here: ThreadState, reason: int) -> None:
    """Put the mode back where births were paused for a frame, which is over."""
    if not reason or here.stepping != reason:
        return
    here.stepping = 0
    if here.watched and here.compiled is None and here is LOCAL.here:
        put_on()


def resume_after_a_failed_step(here: ThreadState) -> None:
    """Put the mode back where the frame for which births were paused runs no more, but a traceback keeps it."""
    frame: FrameType | None = _getframe(1)
    while frame is not None:
        if id(frame) == here.stepping:
            return
        frame = frame.f_back
    resume_births(here, here.stepping)


def put_on() -> None:
    """Put the modes at the bottom of this thread's stack, but above that of a default device, which must be there."""
    modes = LOCAL.here.modes
    if not modes:
        return
    above = [_pop() for _ in range(_depth())]
    if above and isinstance(above[-1], DeviceContext):
        _push(above.pop())
    for mode in modes:
        _push(mode)
    for mode in reversed(above):
        _push(mode)


def take_off() -> bool:
    """Take the modes off this thread's stack; tells whether one was there."""
    return _take_off(LOCAL.here.modes)


def _take_off(modes: tuple[object, ...]) -> bool:
    above: list[Any] = []
    left_to_find = len(modes)
    while left_to_find and _depth():
        mode = _pop()
        if any(mode is ours for ours in modes):
            left_to_find -= 1
        else:
            above.append(mode)
    for mode in reversed(above):
        _push(mode)
    return left_to_find < len(modes)


def _forget_inherited() -> None:
    here = LOCAL.here
    take_off()
    here.scopes.clear()
    # A detector that is open in the parent is open in the child.
    here.modes = tuple(mode for mode in here.modes if mode is not MODE)
    here.watched = bool(here.modes)
    here.compiled = None
    here.stepping = 0
    put_on()


def _seam() -> tuple[Callable[[DisposeScope], object], Callable[[DisposeScope], object]]:
    """`entered` and `left`, compiled where they can be."""
    if TORCH_HOT is None:
        return entered, left
    TORCH_HOT.bind_seam(
        {
            "DisposeScope": DisposeScope,
            "LOCAL": LOCAL,
            "MODE": MODE,
            "PINNED": PINNED,
            "ThreadState": ThreadState,
            "depth": _depth,
            "entered": entered,
            "left": left,
            "pop": _pop,
            "push": _push,
        }
    )
    return TORCH_HOT.entered, TORCH_HOT.left


def see_births(kind: Kind) -> None:
    """Watch every thread on which a scope is entered from now on, and this one where one is open."""
    _KIND.append(kind)
    _quicken(kind)
    enter, leave = _seam()
    ENTERED.append(enter)
    LEFT.append(leave)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget_inherited)
    scope = current_scope()
    opened: list[DisposeScope] = []
    while scope is not None:
        opened.append(scope)
        scope = scope.outer
    for outer in reversed(opened):
        entered(outer)
