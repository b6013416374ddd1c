"""Work handed to another thread with ``contextvars.Context.run`` makes births on that thread too.

Modes are per thread, and a context is entered in C, where nobody is told. So the two doors through which such work
comes to a thread, ``ThreadPoolExecutor.submit`` (``asyncio.to_thread`` and ``loop.run_in_executor`` go through it) and
``threading.Thread``, see to it that the thread is watched while the work runs. All other work passes through unchanged.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context
from types import BuiltinFunctionType
from typing import Any, Final

from ..scopes._current import CURRENT
from ._torch_scopes import entered, left

__all__ = ["watch_threads"]

_submit: Final[Callable[..., Future[Any]]] = ThreadPoolExecutor.submit
_run: Final[Callable[[threading.Thread], None]] = threading.Thread.run


def watch_threads() -> None:
    """Watch each thread while it runs work in a context in which a scope is open, from now on."""
    executor: Any = ThreadPoolExecutor
    thread: Any = threading.Thread
    executor.submit = _submit_watched
    thread.run = _run_watched


def _context_of(work: Any) -> Context | None:
    """The context whose ``run`` some work is, or None where it is anything else."""
    while type(work) is functools.partial:
        work = work.func
    if type(work) is BuiltinFunctionType and type(work.__self__) is Context and work.__name__ == "run":
        return work.__self__
    return None


@contextmanager
def _watched(context: Context) -> Generator[None, None, None]:
    scope = context.get(CURRENT)
    if scope is None:
        yield
        return
    entered(scope)
    try:
        yield
    finally:
        left(scope)


def _in_watched(context: Context, work: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    with _watched(context):
        return work(*args, **kwargs)


@functools.wraps(_submit)
def _submit_watched(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    context = _context_of(fn)
    if context is None:
        return _submit(self, fn, *args, **kwargs)
    return _submit(self, _in_watched, context, fn, args, kwargs)


@functools.wraps(_run)
def _run_watched(self: Any) -> None:
    context = _context_of(getattr(self, "_target", None))
    if context is None:
        _run(self)
        return
    with _watched(context):
        _run(self)
