"""What is raised where releases failed: all failures together, or hung onto the exception that is on its way."""

from __future__ import annotations

from typing import cast

__all__ = ["raise_failures"]


def raise_failures(failures: list[BaseException], doing: str, in_flight: BaseException | None) -> None:
    """Raise what went wrong in releases as one group, or hang it onto the exception that is on its way already."""
    count = len(failures)
    others = [failure for failure in failures if failure is not in_flight]
    # The frames that hold this list are reached from the failures' tracebacks: full, it would be in a cycle with them.
    failures.clear()
    if in_flight is None:
        group = BaseExceptionGroup(f"{doing}: {count} of the releases failed; all others were done", others)
        del others
        try:
            raise group
        finally:
            # This frame is in its traceback: kept here, it would be a cycle.
            del group
    in_flight.add_note(f"while {doing}, {count} releases failed; they are in its __context__")
    if not others:
        return
    for failure in others:
        _cut_context(failure, in_flight)
    # The exception in flight propagates; the group joins its context, at the end of the chain that is there.
    last = in_flight
    met = {id(last)}
    while last.__context__ is not None and id(last.__context__) not in met:
        last = last.__context__
        met.add(id(last))
    last.__context__ = BaseExceptionGroup(f"{doing}: {count} of the releases failed; all others were done", others)


def _cut_context(failure: BaseException, in_flight: BaseException) -> None:
    """Take the exception in flight out of a failure's context, where Python put it: the failure will be in its."""
    pending = [failure]
    met: set[int] = set()
    while pending:
        error = pending.pop()
        if id(error) in met:
            continue
        met.add(id(error))
        if isinstance(error, BaseExceptionGroup):
            pending.extend(cast("BaseExceptionGroup[BaseException]", error).exceptions)
        if error.__context__ is in_flight:
            error.__context__ = None
        elif error.__context__ is not None:
            pending.append(error.__context__)
