"""Scopes that are open though nobody is in their block: not closed, or of a suspended generator or coroutine."""

from __future__ import annotations

import sys
import time
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Final

from ._leak import Leak, LeakKind, Sureness
from ._openings import OPENINGS, Opening
from ._site import site_of
from ._tensorless import leak_without_tensor

if TYPE_CHECKING:
    from .._scope import DisposeScope

__all__ = ["unclosed_scopes"]

_COROUTINE: Final = 0x80  # inspect.CO_COROUTINE
_SUSPENDS: Final = 0x2A0  # inspect.CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


def unclosed_scopes(*, of_program: bool) -> list[Leak]:
    """The scopes that are open though their block is over, or suspended, worst first.

    Parameters
    ----------
    of_program : bool
        Whether the program is over: what is suspended then stays so. While it runs, a suspended generator or task may
        go on, and is not told of.
    """
    running = _running()
    found: list[Leak] = []
    for opening in OPENINGS.open_scopes():
        scope = opening.reference()
        code = opening.code
        if scope is None or code is None or (opening.frame_id, code) in running:
            continue
        suspends = bool(code.co_flags & _SUSPENDS) or scope._frame is not None
        if suspends and not of_program:
            continue
        found.append(_leak(opening, scope, code, suspends))
    found.sort(key=lambda leak: (-leak.nbytes, str(leak.site)))
    return found


def _leak(opening: Opening, scope: DisposeScope, code: CodeType, suspends: bool) -> Leak:
    called = "A scope without a name" if not opening.name else f"The scope {opening.name!r}"
    site = site_of(opening.mark)
    kind: LeakKind = "scope"
    sure: Sureness = "certain"
    if suspends:
        kind, sure = "suspended", "likely"
        what = "task" if code.co_flags & _COROUTINE else "generator"
        frame = scope._frame
        where = "" if frame is None or frame.f_lineno is None else f" at line {frame.f_lineno}"
        text = (
            f"{called} is open in the {what} {code.co_qualname}(), which is suspended{where} and does not go on: close "
            f"the {what}, or let it run to its end."
        )
    else:
        text = f"{called} was entered and not closed: use a with statement, or call close()."
    return leak_without_tensor(
        kind,
        sure,
        scope.nbytes,
        text,
        site=site,
        scopes=(opening.name,),
        age_s=max(0.0, time.monotonic() - opening.at_s),
    )


def _running() -> set[tuple[int, CodeType]]:
    """The frames that run on any thread, and the code of each."""
    found: set[tuple[int, CodeType]] = set()
    above: FrameType | None
    for above in list(sys._current_frames().values()):
        while above is not None:
            found.add((id(above), above.f_code))
            # None in the end: a frame that has its own frame in a variable is garbage that only the collector frees.
            above = above.f_back
    return found
