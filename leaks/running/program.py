"""Run a program as ``python`` does: its ``__main__``, arguments, errors and exit status."""

from __future__ import annotations

import atexit
import io
import os
import pkgutil
import runpy
import signal
import sys
import threading
import types
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from typing import Any, Final, cast, final

from ...scopes.base.process import PATCHES, TESTED_PYTHON, Patch

__all__ = [
    "Outcome",
    "ProgramNotFoundError",
    "error_text",
    "prepare_code",
    "prepare_module",
    "prepare_script",
    "run_program",
]

_HERE: Final = __file__
_EXCEPTIONS: Final = Patch(
    library="python",
    name="sys.excepthook",
    why="an interrupt that leak-report run has printed is not printed again when Python ends by its signal",
    tested=TESTED_PYTHON,
    guard="it is there",
    otherwise="the interrupt is printed twice",
)
_AT_THE_END: Final = Patch(
    library="python",
    name="threading._shutdown and atexit._run_exitfuncs, which are called and not changed",
    why="the report is made when threads have ended and exit functions have run, with the program still there",
    tested=TESTED_PYTHON,
    guard="they are there",
    otherwise="the report is made before: what they free is not said to be freed, and what they make is not reported",
)
PATCHES.declare(_EXCEPTIONS, _AT_THE_END)


class ProgramNotFoundError(Exception):
    """Raised if there is no such program; the message says why in one line."""


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a program.

    Attributes
    ----------
    status : int
        Its exit status.
    interrupted : bool
        Whether it was ended by Ctrl-C, which a shell learns from a signal and not from a status.
    failed : bool
        Whether an exception other than ``SystemExit`` ended it.
    error : str or None
        That exception: its type and message.
    ran : bool
        Whether any code of the program ran. False if it is not Python, or there is no such module.
    """

    status: int
    interrupted: bool = False
    failed: bool = False
    error: str | None = None
    ran: bool = True


def prepare_script(script: str, args: list[str]) -> Callable[[], object]:
    """Set up ``sys.argv``, ``sys.path`` and ``__main__`` for a path.

    It is a file of source or bytecode, a folder, or a zip file.

    Returns
    -------
    callable
        Runs the program.

    Raises
    ------
    ProgramNotFoundError
        The file cannot be read.
    """
    path = os.path.abspath(script)
    if os.path.isdir(path) or _is_zip(path):
        _enter_main(types.ModuleType("__main__"), [script, *args], path, holds_main=True)
        return lambda: _run_module("__main__", False)
    try:
        with io.open_code(path) as file:
            content = file.read()
    except OSError as error:
        raise ProgramNotFoundError(f"can't open file {script!r}: {error.strerror}") from None
    main = types.ModuleType("__main__")
    namespace = vars(main)
    namespace.update(
        __file__=path,
        __builtins__=sys.modules["builtins"],
        __loader__=SourceFileLoader("__main__", path),
        __package__=None,
        __spec__=None,
        __cached__=None,
        **_annotations(),
    )
    # As Python does: the folder of the file itself, not that of a link to it.
    _enter_main(main, [script, *args], os.path.dirname(os.path.realpath(path)))

    def run() -> None:
        code = pkgutil.read_code(io.BytesIO(content))
        exec(compile(content, path, "exec", dont_inherit=True) if code is None else code, namespace)

    return run


def prepare_module(module: str, args: list[str]) -> Callable[[], object]:
    """Set up ``sys.argv``, ``sys.path`` and ``__main__`` for a module: see `prepare_script`."""
    _enter_main(types.ModuleType("__main__"), ["-m", *args], os.getcwd())
    try:
        found = find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise ProgramNotFoundError(f"No module named {module!r}")
    return lambda: _run_module(module, True)


def _annotations() -> dict[str, object]:
    """Return the variable ``__annotations__`` of a new program; there is none since Python 3.14."""
    return {} if sys.version_info >= (3, 14) else {"__annotations__": {}}


def prepare_code(code: str, args: list[str]) -> Callable[[], object]:
    """Set up ``sys.argv``, ``sys.path`` and ``__main__`` for a text: see `prepare_script`."""
    main = types.ModuleType("__main__")
    namespace = vars(main)
    namespace.update(__loader__=None, __package__=None, __spec__=None, **_annotations())
    _enter_main(main, ["-c", *args], "")

    def run() -> None:
        exec(compile(code, "<string>", "exec", dont_inherit=True), namespace)

    return run


def run_program(
    run: Callable[[], object], *, returned: Callable[[Outcome], object], joined: Callable[[], object]
) -> Outcome:
    """Run a program up to the point where the interpreter would shut down.

    An exception that leaves it is printed as Python prints it. Its threads are waited for, and its
    exit functions are called. Its ``__main__`` is still there afterwards.

    Parameters
    ----------
    run : callable
        Runs the code of the program.
    returned : callable
        Called when the code has returned, before threads are waited for.
    joined : callable
        Called when its threads have ended, before its exit functions run.
    """
    ended_by = _error_of(run)
    outcome = Outcome(0) if ended_by is None else _ended_by(ended_by)
    ended_by = None
    returned(outcome)
    _print_error_of(_join_threads)
    joined()
    _print_error_of(_call_exit_functions)
    for stream in (sys.stdout, sys.stderr):
        # The interpreter flushes again when it shuts down, and reports the error.
        with suppress(Exception):
            stream.flush()
    return outcome


def exit_as(outcome: Outcome) -> int:
    """Return the status to exit with, or end by the signal that interrupted the program.

    Raises
    ------
    KeyboardInterrupt
        The program was interrupted. The interpreter ends by the signal and prints nothing.
    """
    if outcome.interrupted:
        PATCHES.replace(_EXCEPTIONS, sys, "excepthook", lambda _: _print_nothing)
        raise KeyboardInterrupt
    return outcome.status


def _print_nothing(*_exception: object) -> None:
    """Print nothing, because the traceback was printed before."""


def _join_threads() -> None:
    # The interpreter calls this function before the exit functions. It may be called twice.
    _call(threading, "_shutdown")


def _call_exit_functions() -> None:
    _call(atexit, "_run_exitfuncs")


def _call(module: types.ModuleType, name: str) -> None:
    function: Callable[[], object] | None = getattr(module, name, None)
    if function is None:
        PATCHES.fail(_AT_THE_END, f"{module.__name__} has no {name}")
    else:
        function()


def _error_of(function: Callable[[], object]) -> BaseException | None:
    try:
        function()
    except BaseException as error:
        return error
    return None


def _print_error_of(function: Callable[[], object]) -> None:
    failed = _error_of(function)
    if failed is not None:
        _print_exception(failed)


def _run_module(name: str, alter_argv: bool) -> object:
    # `python -m` calls this function too, so a traceback shows the same frames.
    return cast("Any", runpy)._run_module_as_main(name, alter_argv)


def _enter_main(main: types.ModuleType, argv: list[str], folder: str, *, holds_main: bool = False) -> None:
    sys.modules["__main__"] = main
    vars(main).setdefault("__builtins__", sys.modules["builtins"])
    sys.argv[:] = argv
    if not sys.flags.safe_path:
        # This is the folder of the running script, which is `leak-report` itself.
        del sys.path[:1]
    elif not holds_main:
        return
    sys.path.insert(0, folder)


def _is_zip(path: str) -> bool:
    return os.path.isfile(path) and zipfile.is_zipfile(path)


def _ended_by(error: BaseException) -> Outcome:
    if isinstance(error, SystemExit):
        code = error.code
        if code is None:
            return Outcome(0)
        if isinstance(code, int):
            return Outcome(code)
        print(code, file=sys.stderr)
        # If no code has run, this is the message of runpy for a module that is not there.
        ran = _has_run(error)
        return Outcome(1, error=None if ran else str(code), ran=ran)
    ran, text = _has_run(error), error_text(error)
    status = _print_exception(error)
    if isinstance(error, KeyboardInterrupt):
        # The status that a shell gives to a program that a signal ended.
        return Outcome(128 + signal.SIGINT, interrupted=True, failed=True, error=text, ran=ran)
    return Outcome(status, failed=True, error=text, ran=ran)


def _has_run(error: BaseException) -> bool:
    """Return whether an exception came out of code of the program, by its traceback."""
    namespace = vars(sys.modules["__main__"])
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals is namespace:
            return True
        trace = trace.tb_next
    return False


def error_text(error: BaseException) -> str:
    """Return the type and the message of an exception, in one line."""
    try:
        message = str(error).partition("\n")[0]
    except Exception:
        message = ""
    cls = type(error)
    name = cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"
    return f"{name}: {message}" if message else name


def _print_exception(error: BaseException) -> int:
    """Print an exception as the interpreter would, and set ``sys.last_exc``; return the status."""
    trace = _without_our_frames(error)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        with suppress(Exception):
            sys.stdout.flush()
        sys.excepthook(type(error), error, trace)
    except SystemExit as exit_:
        return _ended_by(exit_).status
    except BaseException as failed:
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(failed), failed, _without_our_frames(failed))
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, trace)
    return 1


def _without_our_frames(error: BaseException) -> types.TracebackType | None:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == _HERE:
        trace = trace.tb_next
    error.__traceback__ = trace
    return trace
