"""A scope around each call of a function, and what the function returns or yields moved to its caller."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ._stack import drive_by_hand, resume_scope, suspend_scope

if TYPE_CHECKING:
    from ._scope import DisposeScope

__all__ = ["decorate"]

P = ParamSpec("P")
R = TypeVar("R")


def decorate(scope: DisposeScope, function: Any) -> Callable[..., Any]:
    """Wrap a function so that each call runs in a fresh scope like `scope`: see `DisposeScope.__call__`."""
    if isinstance(function, type) or not callable(function):
        what = "no function was given" if function is None else f"{function!r} is not one"
        raise TypeError(f"@dispose_scope() decorates functions, coroutine functions and generator functions; {what}")
    if scope._state:
        raise TypeError(f"{scope!r} has been entered; a decorator is made anew: @dispose_scope()")
    if inspect.isasyncgenfunction(function):
        return _around_async_generator(scope, function)
    if inspect.isgeneratorfunction(function):
        return _around_generator(scope, function)
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with scope._fresh() as fresh:
                return fresh._hand_out(await function(*args, **kwargs))

        return coroutine

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with scope._fresh() as fresh:
            return fresh._hand_out(function(*args, **kwargs))

    return call


def _around_generator(scope: DisposeScope, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        inner = function(*args, **kwargs)
        fresh = scope._fresh()
        with fresh:
            drive_by_hand(fresh)
            resume: Callable[..., Any] = inner.send
            # Popped before it is passed on: an exception that stayed here would be in a cycle with this frame.
            given: list[Any] = [None]
            while True:
                try:
                    yielded = fresh._hand_out(resume(given.pop()))
                except StopIteration as stop:
                    return fresh._hand_out(stop.value)
                except BaseException:
                    inner.close()
                    raise
                top = suspend_scope(fresh)
                try:
                    sent = yield yielded
                except GeneratorExit:
                    resume_scope(fresh, top)
                    inner.close()
                    raise
                except BaseException as error:
                    resume, given = inner.throw, [error]
                else:
                    resume, given = inner.send, [sent]
                    del sent
                del yielded
                resume_scope(fresh, top)

    return generator


def _around_async_generator(scope: DisposeScope, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        inner = function(*args, **kwargs)
        fresh = scope._fresh()
        with fresh:
            drive_by_hand(fresh)
            resume: Callable[..., Any] = inner.asend
            given: list[Any] = [None]
            while True:
                try:
                    yielded = fresh._hand_out(await resume(given.pop()))
                except StopAsyncIteration:
                    return
                except BaseException:
                    await inner.aclose()
                    raise
                top = suspend_scope(fresh)
                try:
                    sent = yield yielded
                except GeneratorExit:
                    resume_scope(fresh, top)
                    await inner.aclose()
                    raise
                except BaseException as error:
                    resume, given = inner.athrow, [error]
                else:
                    resume, given = inner.asend, [sent]
                    del sent
                del yielded
                resume_scope(fresh, top)

    return generator
