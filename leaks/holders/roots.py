"""The roots of a search: globals of modules, frames of running functions, kept exceptions."""

from __future__ import annotations

import contextvars
import gc
import inspect
import os
import signal
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import chain
from types import FrameType
from typing import Any, Final, cast
from weakref import WeakSet, finalize

from ...scopes.base.sites import is_inside, line_of_frame, shown
from ...scopes.compiled import tracked_objects, variables_of
from .origins import Origin, OriginKind
from .references import (
    HIDDEN_TYPES,
    awaited_by,
    class_of,
    framework_of,
    is_module,
    is_static,
    named_in,
    namespace_of,
    qualified_name_of,
    runs_module,
)

__all__ = [
    "count_names",
    "handler_of",
    "is_library_class",
    "is_of_library",
    "library_frames",
    "library_roots",
    "typed_roots",
    "user_roots",
]

Root = tuple[Origin, object]
"""What is known of a root, and the object."""

_GETSIGNAL: Final[Callable[[int], Any]] = import_module("_signal").getsignal
_COROUTINE_FLAGS: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

_OURS: Final = __name__.partition(".")[0]
_LIBRARY_FOLDERS: Final = tuple(
    os.path.join(path, "")
    for path in {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    if path
)
_MADE_BY_CYTHON: Final = ("_cython_", "cython_runtime")
"""The names of modules that extensions written in Cython make, which have no file, begin so."""
_LIBRARY_PARTS: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def user_roots() -> Iterator[Iterable[Root]]:
    """Yield the roots in the user's code, in groups: what several groups reach, the first has.

    The first group has the variables of modules, ``__main__`` before the others. Each running
    function is a group, the outermost first. Coroutines, waiting and running, and what these call
    are one group: each leads to all others, through the event loop, and a shorter way is meant. The
    last group has exceptions, signal handlers, tasks and context variables.
    """
    yield (root for name, namespace in _namespaces() if not is_of_library(name) for root in _variables(name, namespace))
    tasks = sorted(_tasks(), key=_age_of)
    in_coroutines = [_waiting_in(name, task) for name, task in tasks]
    threads_with_coroutines: set[str] = set()
    for on_thread, frame in _frames():
        if _is_of_library_code(frame):
            continue
        if frame.f_code.co_flags & _COROUTINE_FLAGS:
            threads_with_coroutines.add(on_thread)
        if on_thread in threads_with_coroutines:
            in_coroutines.append(_locals(on_thread, frame))
        else:
            yield _locals(on_thread, frame)
    yield chain.from_iterable(in_coroutines)
    yield _other_roots(tasks)


def library_frames() -> Iterator[Root]:
    """Yield the variables of running functions of libraries.

    Such as the loop of PyTorch that runs a DataLoader worker.
    """
    return (root for on_thread, frame in _frames() if _is_of_library_code(frame) for root in _locals(on_thread, frame))


def _text_of(frame: FrameType) -> str:
    return f"frame {shown(frame.f_code.co_filename)}:{line_of_frame(frame)} {frame.f_code.co_qualname}()"


def _is_of_library_code(frame: FrameType) -> bool:
    # Code that `exec` runs in a dict of its own may have no ``__name__``: it is the user's.
    return is_of_library(frame.f_globals.get("__name__", "__main__"))


def _locals(on_thread: str, frame: FrameType) -> Iterator[Root]:
    """Yield the variables of a running function, given what a text says of its thread."""
    where, function = _text_of(frame), frame.f_code.co_qualname
    is_of_coroutine = bool(frame.f_code.co_flags & _COROUTINE_FLAGS)
    if is_of_coroutine:
        where += " of a coroutine"
    where += on_thread
    for name, value in variables_of(frame).items():
        yield Origin(f"{where}: local {name!r}", "frame", function, name, on_thread, is_of_coroutine), value


def _other_roots(tasks: Sequence[tuple[str, object]]) -> Iterator[Root]:
    """Yield the user's roots that are no variables of modules, functions or coroutines."""
    yield from _exceptions_in_flight()
    for name in ("last_exc", "last_value", "last_traceback"):
        value = vars(sys).get(name)
        if value is not None:
            yield Origin(f"sys.{name}", "last exception"), value
            break
    yield from _signal_handlers()
    # This belongs to the standard library, but the program fills it.
    yield Origin("module weakref.finalize._registry", "finalizers"), namespace_of(finalize).get("_registry")
    for name, task in tasks:
        for context in gc.get_referents(task):
            if type(context) is contextvars.Context:
                yield from _in_context(context, name)
    if not _runs_a_task():
        yield from _in_context(contextvars.copy_context(), None)
    for name, task in tasks:
        yield Origin(f"task {name!r}", "task"), task


def library_roots() -> Iterator[Root]:
    """Yield the modules of libraries, except this one."""
    for name, namespace in _namespaces():
        if is_of_library(name) and name.partition(".")[0] != _OURS:
            yield from _variables(name, namespace)


def typed_roots(left_out: Container[int], *, libraries: bool) -> Iterator[Root]:
    """Yield instances and functions that no other root leads to, named only by type or function.

    Compiled code holds them, such as functions that are called when the interpreter exits.

    Parameters
    ----------
    left_out : container of int
        The ``id`` of objects to leave out: those that were reached from other roots.
    libraries : bool
        Whether to yield instances of classes of libraries (except this one), and functions of
        libraries; or else the user's.
    """
    # The origin for the instances of each type; None for a type whose instances are left out.
    starts: dict[type, Origin | None] = {}
    thing: object = None
    for thing in tracked_objects():
        cls = class_of(thing)
        if cls is types.FunctionType:
            function = cast("types.FunctionType", thing)
            if id(thing) not in left_out and is_of_library(function.__module__) is libraries:
                yield Origin(f"<function {function.__qualname__.rpartition('<locals>.')[2]}>", "compiled code"), thing
            continue
        if cls not in starts:
            starts[cls] = _origin_of_instances(cls, libraries)
        start = starts[cls]
        if start is not None and id(thing) not in left_out:
            yield start, thing


def _origin_of_instances(cls: Any, libraries: bool) -> Origin | None:
    """Return the origin of a root that is an instance of a class; None if these are no roots."""
    module = named_in(cls, "__module__")
    if type(module) is not str or module.partition(".")[0] == _OURS or is_of_library(module) is not libraries:
        return None
    if is_static(cls) or cls in HIDDEN_TYPES or issubclass(cls, (type, BaseException)):
        return None
    known = framework_of(cls)
    if known is not None and known.part != "module":
        return None
    return Origin(f"<{qualified_name_of(cls).rpartition('<locals>.')[2]}>", "compiled code")


def count_names(wanted: Collection[int]) -> dict[int, int]:
    """Return how many variables refer to each object, by ``id``.

    Variables are globals, and locals of running functions.
    """
    counts: dict[int, int] = {}
    if not wanted:
        return counts
    for name, namespace in _namespaces():
        if name.partition(".")[0] != _OURS:
            for value in namespace.values():
                if id(value) in wanted:
                    counts[id(value)] = counts.get(id(value), 0) + 1
    for _, frame in _frames():
        for value in variables_of(frame).values():
            if id(value) in wanted:
                counts[id(value)] = counts.get(id(value), 0) + 1
    return counts


def is_of_library(module: object) -> bool:
    """Return whether a module is of the standard library, an installed package, or this one."""
    if type(module) is not str:
        return True
    top = module.partition(".")[0]
    if top == "__main__":
        return False
    if top in sys.stdlib_module_names or top == _OURS or top.startswith(_MADE_BY_CYTHON):
        return True
    # Ask the top package: modules inside it that an extension makes have no file.
    package = sys.modules.get(top)
    if package is None or not is_module(package):
        return False
    file = named_in(package, "__file__")
    if type(file) is str:
        return _is_installed(file)
    # A namespace package, such as `google`, has folders and no file. The list of them is inside of
    # an object of the import system, or is that object itself.
    path = named_in(package, "__path__")
    if type(path).__module__ == "_frozen_importlib_external":
        path = vars(path).get("_path")
    folders = cast("list[object]", path) if type(path) is list else []
    return bool(folders) and all(_is_installed(f"{folder}{os.sep}") for folder in folders)


def _is_installed(path: str) -> bool:
    return any(part in path for part in _LIBRARY_PARTS) or path.startswith(_LIBRARY_FOLDERS)


def is_library_class(thing: object) -> bool:
    """Return whether an object is a class of a library."""
    return issubclass(type(thing), type) and is_of_library(named_in(thing, "__module__"))


def _exceptions_in_flight() -> Iterator[Root]:
    here = threading.get_ident()
    handled = cast("Mapping[int, object]", sys._current_exceptions())
    for thread, given in handled.items():
        # Before Python 3.12 they are the three values of `sys.exc_info`, and then the exception.
        error = cast("tuple[object, ...]", given)[1] if isinstance(given, tuple) else given
        if error is not None:
            where = "" if thread == here else f" on thread {thread}"
            yield Origin(f"exception in flight{where}", "exception in flight"), error


def handler_of(number: int) -> Any:
    """Return the handler of a signal, without any code of the program.

    `signal.getsignal` looks for the handler among those of its enumeration, and so asks it for its
    ``repr``. With `asyncio.run` that shows the main task, and what it awaits.
    """
    return _GETSIGNAL(number)


def _signal_handlers() -> Iterator[Root]:
    """Yield the program's signal handlers."""
    for number in signal.valid_signals():
        handler = handler_of(number)
        function: Any = handler.__func__ if _is_exactly(handler, types.MethodType) else handler
        if _is_exactly(function, types.FunctionType) and str(function.__module__).partition(".")[0] == _OURS:
            continue
        # Without a handler of the program: the number of `signal.SIG_DFL`, or a builtin function.
        if handler is not None and class_of(handler) not in (types.BuiltinFunctionType, int):
            name = number.name if _is_exactly(number, signal.Signals) else f"signal {number}"
            yield Origin(f"handler of {name}", "signal handler"), handler


def _in_context(context: contextvars.Context, task: str | None) -> Iterator[Root]:
    whose = "" if task is None else f" of task {task!r}"
    kind: OriginKind = "context" if task is None else "context of a task"
    for variable, value in context.items():
        if type(value) not in HIDDEN_TYPES:
            yield Origin(f"context variable {variable.name!r}{whose}", kind), value


def _runs_a_task() -> bool:
    """Return whether a task runs on this thread: then the current context is the task's."""
    namespace = _namespace_of_tasks()
    try:
        return "current_task" in namespace and _is_exactly(namespace["current_task"](), namespace.get("_CTask"))
    except RuntimeError:
        # No event loop runs here.
        return False


def _namespace_of_tasks() -> Mapping[str, Any]:
    asyncio_tasks = sys.modules.get("asyncio.tasks")
    return {} if asyncio_tasks is None or not is_module(asyncio_tasks) else namespace_of(asyncio_tasks)


def _tasks() -> Iterator[tuple[str, object]]:
    """Yield the tasks of event loops that are not done, each with its name.

    They are roots because the frames of a waiting task are on no stack.
    """
    namespace = _namespace_of_tasks()
    # Only tasks written in C: their get_name() and done() run no code of the program.
    task_type = namespace.get("_CTask")
    task: Any = None
    for task in () if task_type is None else _task_candidates(namespace, task_type):
        if _is_exactly(task, task_type) and not task.done():
            yield task.get_name(), task


def _age_of(named_task: tuple[str, object]) -> tuple[int, str]:
    # asyncio numbers the names of tasks: "Task-9" is older than "Task-10".
    name, _ = named_task
    return len(name), name


def _waiting_in(task_name: str, task: Any) -> Iterator[Root]:
    """Yield the variables of the user's coroutines that wait in a task, the outermost first."""
    waiting: Any = task.get_coro()
    while class_of(waiting) is types.CoroutineType:
        frame = waiting.cr_frame
        if frame is not None and waiting.cr_suspended and not is_of_library(frame.f_globals.get("__name__")):
            where, function = f"task {task_name!r}, suspended {_text_of(frame)}", frame.f_code.co_qualname
            for name, value in variables_of(frame).items():
                yield Origin(f"{where}: local {name!r}", "task", function, name), value
        waiting = awaited_by(waiting)


def _task_candidates(namespace: Mapping[str, Any], task_type: type) -> Iterator[object]:
    """Yield objects among which are all tasks."""
    if sys.version_info >= (3, 14):
        # asyncio has no longer a set of the tasks of all event loops.
        yield from tracked_objects(task_type)
        return
    for name in ("_scheduled_tasks", "_all_tasks"):
        tasks = namespace.get(name)
        if type(tasks) is WeakSet:
            yield from (reference() for reference in list(cast("Any", tasks).data))
            return


def _name_of_thread(ident: int) -> str:
    """Return the name of a thread, or its number where Python did not start it, without a lock."""
    threads = cast("Mapping[int, Any]", vars(threading).get("_active", {}))
    thread: Any = threads.get(ident)
    name: object = getattr(thread, "_name", None)
    return repr(name) if isinstance(name, str) else str(ident)


def _is_exactly(thing: object, cls: Any) -> bool:
    return class_of(thing) is cls


def _namespaces() -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the name and the variables of each module, once, ``__main__`` first."""
    modules = dict(sys.modules)
    main = modules.pop("__main__", None)
    seen: set[int] = set()
    for name, module in [("__main__", main), *modules.items()]:
        if module is not None and is_module(module) and id(module) not in seen:
            seen.add(id(module))
            yield name, namespace_of(module)


def _variables(module: str, namespace: dict[str, object]) -> Iterator[Root]:
    for name, value in namespace.items():
        yield Origin(f"module {module}.{name}", "module", module, name), value


def _frames() -> Iterator[tuple[str, FrameType]]:
    """Yield the frames of all threads, each with what a text says of its thread.

    This thread comes first, and of each thread the outermost frame, whose variables live longest.
    Frames of this package and of modules are left out.
    """
    frames = sys._current_frames()
    here = threading.get_ident()
    # Leave out this frame: a variable of it that refers to it would be a cycle, which only the
    # garbage collector frees.
    innermost = [(here, frames.pop(here).f_back), *frames.items()]
    del frames
    unsaid = (here, threading.main_thread().ident)
    # A thread that ends during the search has no name any more.
    names = {thread: "" if thread in unsaid else f" on thread {_name_of_thread(thread)}" for thread, _ in innermost}
    for thread, frame in innermost:
        above: FrameType | None = frame
        outwards: list[FrameType] = []
        while above is not None:
            if not is_inside(above) and not runs_module(above):
                outwards.append(above)
            above = above.f_back
        while outwards:
            yield names[thread], outwards.pop()
