"""The scopes that are open while a detector is open, with the place where each was entered."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Final, final
from weakref import ref

from ...scopes.base.sites import Mark, is_inside
from ...scopes.context import OPEN

if TYPE_CHECKING:
    from ...scopes.compiled import ScopeState

__all__ = [
    "OPENINGS",
    "Opening",
]


@final
@dataclass(frozen=True, slots=True)
class Opening:
    """The entry of a scope while a detector was open.

    Attributes
    ----------
    reference : weakref.ref
        The scope.
    name : str
        Its name, ``""`` where it has none.
    at_s : float
        When it was entered, by ``time.monotonic()``.
    mark : Mark or None
        The place in user code that entered it.
    frame_id : int
        The ``id`` of the frame that entered it. A later frame may have the same ``id``: compare the
        code as well.
    code : code or None
        The code of that frame.
    """

    reference: ref[ScopeState]
    name: str
    at_s: float
    mark: Mark | None
    frame_id: int
    code: CodeType | None


@final
class Openings:
    """The scopes that were entered while a detector was open. The one instance is `OPENINGS`."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, Opening] = {}

    def clear(self) -> None:
        """Forget all scopes."""
        self._known.clear()

    def add(self, scope: ScopeState) -> None:
        """Add a scope that the calling thread is entering."""
        frame = _user_frame(sys._getframe(1))
        self._known[id(scope)] = Opening(
            ref(scope),
            scope.name or "",
            time.monotonic(),
            None if frame is None else (frame.f_code, frame.f_lasti),
            id(frame),
            None if frame is None else frame.f_code,
        )

    def remove(self, scope: ScopeState) -> None:
        """Forget a scope that was closed."""
        self._known.pop(id(scope), None)

    def open_scopes(self) -> list[Opening]:
        """Return the scopes that were entered, are not closed, and are still alive."""
        found: list[Opening] = []
        for key, opening in list(self._known.items()):
            scope = opening.reference()
            if scope is None or scope._state != OPEN:
                self._known.pop(key, None)
            else:
                found.append(opening)
        return found

    def stacks(self) -> list[list[Opening]]:
        """Return each innermost open scope with the open scopes around it, outermost first.

        Stacks come in the order in which their innermost scopes were entered.
        """
        found = {id(scope): opening for opening in self.open_scopes() if (scope := opening.reference()) is not None}
        # For each scope, by ``id``, the ids of its outer scopes, the nearest first.
        outer_of: dict[int, list[int]] = {}
        for key, opening in found.items():
            outwards: list[int] = []
            outer_of[key] = outwards
            scope = opening.reference()
            while scope is not None and (scope := scope.outer) is not None:
                outwards.append(id(scope))
        outer = {key for outwards in outer_of.values() for key in outwards}
        return [
            [found[each] for each in (*reversed(outwards), key) if each in found]
            for key, outwards in outer_of.items()
            if key not in outer
        ]


OPENINGS: Final = Openings()
"""The scopes of this process."""


def _user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of neither this library nor a context manager around it."""
    while frame is not None and (is_inside(frame) or frame.f_globals.get("__name__") == "contextlib"):
        frame = frame.f_back
    return frame
