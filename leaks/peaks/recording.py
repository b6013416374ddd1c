"""What was born and freed in a pass: bytes, lines and lives, in the order of the births."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import CodeType
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from ...scopes.base.sites import Mark, Role, Site, rank_of, site_of
from ..report.peak import LinePeak

__all__ = [
    "Birth",
    "Recording",
    "ServedBy",
    "line_of_birth",
    "line_text",
    "living_rows",
    "globals_of_file",
    "role_of",
    "user_place",
]


@final
class ServedBy(IntEnum):
    """How a birth was served. The numbers are those of ``tensors/arena/src/passes.c``.

    Attributes
    ----------
    RECORDED
        There was no plan yet.
    SERVED
        By the slab.
    ESCAPES
        By the pool, as the plan says: in an earlier pass it outlived the pass.
    UNKNOWN, LARGER, IN_USE
        By the pool, because the plan has nothing of that line ahead, or something smaller, or
        because something that is alive has these bytes of the slab.
    RESIZED
        It is the new place of a block that was given another size.
    ELSEWHERE
        It was born on another thread than the one that entered the pass.
    NOTED
        It is memory of PyTorch's.
    SAVED
        It is memory of PyTorch's that a graph may have saved.
    """

    RECORDED = 0
    SERVED = 1
    ESCAPES = 2
    UNKNOWN = 3
    LARGER = 4
    IN_USE = 5
    RESIZED = 6
    ELSEWHERE = 7
    NOTED = 8
    SAVED = 9


_MISSES: Final = (ServedBy.UNKNOWN, ServedBy.LARGER, ServedBy.IN_USE)


@final
@dataclass(frozen=True, slots=True)
class Birth:
    """One birth of a pass.

    Attributes
    ----------
    nbytes : int
        What was asked for; 0 where it was refused.
    died : int or None
        How many births there were before its death; None where it outlived the pass.
    outcome : ServedBy
        How it was served.
    slot : int or None
        Its slot in the plan.
    places : tuple of (code, int)
        The frames at the birth, innermost first.
    """

    nbytes: int
    died: int | None
    outcome: ServedBy
    slot: int | None
    places: tuple[Mark, ...]

    @property
    def is_miss(self) -> bool:
        """Return whether the slab should have served it, and has not."""
        return self.nbytes > 0 and self.outcome in _MISSES

    @property
    def is_planned(self) -> bool:
        """Return whether a plan has a slot for it."""
        is_elsewhere = self.is_noted or self.outcome in (ServedBy.RESIZED, ServedBy.ELSEWHERE)
        return self.nbytes > 0 and not is_elsewhere

    @property
    def is_elsewhere(self) -> bool:
        """Return whether another thread has made it than the one that entered the pass."""
        return self.outcome is ServedBy.ELSEWHERE

    @property
    def is_noted(self) -> bool:
        """Return whether it is memory of another library."""
        return self.outcome in (ServedBy.NOTED, ServedBy.SAVED)


@final
class Recording:
    """The births of a pass.

    Attributes
    ----------
    births : tuple of Birth
        In their order, which is the time: 0, 1, 2, ...
    lower, upper, sizes : array of int64, shape (n,)
        When each was born, the time when it was dead, and its bytes. What outlived the pass has the
        end of the pass as its upper.
    """

    __slots__ = ("_groups", "births", "lower", "sizes", "upper")

    births: tuple[Birth, ...]
    lower: NDArray[np.int64]
    upper: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def __init__(self, births: Sequence[Birth]) -> None:
        self.births = tuple(births)
        end = len(self.births)
        self.lower = np.arange(end, dtype=np.int64)
        deaths = [end if birth.died is None else birth.died for birth in self.births]
        self.upper = np.maximum(np.array(deaths, np.int64), self.lower + 1)
        self.sizes = np.array([birth.nbytes for birth in self.births], np.int64)
        self._groups: tuple[NDArray[np.int64], list[tuple[Mark, ...]]] | None = None

    def groups(self) -> tuple[NDArray[np.int64], list[tuple[Mark, ...]]]:
        """Return for each birth an index into the second list, which has the frames of births.

        Births with equal frames have the same index.
        """
        if self._groups is None:
            numbers: dict[tuple[int, ...], int] = {}
            frames: list[tuple[Mark, ...]] = []
            of_births = np.zeros(len(self.births), np.int64)
            for number, birth in enumerate(self.births):
                # Not by the code objects themselves: their hash is that of all that is in them.
                key = tuple(each for code, offset in birth.places for each in (id(code), offset))
                group = numbers.setdefault(key, len(frames))
                if group == len(frames):
                    frames.append(birth.places)
                of_births[number] = group
            self._groups = of_births, frames
        return self._groups

    def live_nbytes(self, lives: tuple[NDArray[np.int64], ...] | None = None) -> NDArray[np.int64]:
        """Return the bytes that live at each time, with the recorded lives or with given ones.

        Given lives are three arrays: lower, upper and bytes.
        """
        lower, upper, sizes = (self.lower, self.upper, self.sizes) if lives is None else lives
        count = len(self.births)
        changes = np.zeros(count + 1, np.int64)
        np.add.at(changes, lower, sizes)
        np.subtract.at(changes, upper, sizes)
        live: NDArray[np.int64] = np.cumsum(changes[:count])
        return live

    def peak(self) -> tuple[int, int]:
        """Return time and bytes of the peak, the first of several; (0, 0) without births."""
        if not self.births:
            return 0, 0
        live = self.live_nbytes()
        at = int(live.argmax())
        return at, int(live[at])

    def living_at(self, time: int) -> dict[int, tuple[int, int]]:
        """Return count and bytes of births that live at a time, by the number of their frames."""
        alive = (self.lower <= time) & (time < self.upper) & (self.sizes > 0)
        of_births = self.groups()[0][alive]
        found: dict[int, tuple[int, int]] = {}
        for group, nbytes in zip(of_births.tolist(), self.sizes[alive].tolist(), strict=True):
            count, total = found.get(group, (0, 0))
            found[group] = count + 1, total + nbytes
        return found


# Which of the frames is the user's.

_namespaces: Final[dict[str, dict[str, Any]]] = {}
"""The globals of modules by their file: the role of code depends on the name of its module."""


def globals_of_file(file: str) -> dict[str, Any]:
    """Return the globals of the module that a file is of; empty where there is none."""
    namespace = _namespaces.get(file)
    if namespace is None:
        for module in list(sys.modules.values()):
            named: object = getattr(module, "__file__", None)
            if isinstance(named, str):
                _namespaces.setdefault(named, vars(module))
        namespace = _namespaces.setdefault(file, {})
    return namespace


def role_of(code: CodeType) -> Role:
    """Return what code is to a person who looks for a line."""
    return rank_of(code, globals_of_file(code.co_filename))


def user_place(places: tuple[Mark, ...]) -> int:
    """Return the index of the user's innermost frame at a birth.

    Where none is, that of a text that was compiled, as of ``python -c``; or of the outermost frame.
    """
    roles = [role_of(code) for code, _ in places]
    return next((roles.index(role) for role in (Role.USER, Role.GENERATED) if role in roles), len(places) - 1)


def line_of_birth(places: tuple[Mark, ...]) -> Site | None:
    """Return the line of a birth; None where no Python code ran."""
    return site_of(places[user_place(places)]) if places else None


def line_text(birth: Birth) -> str:
    """Return the line of a birth as text."""
    return str(line_of_birth(birth.places) or "<unknown>")


def living_rows(recording: Recording, time: int) -> tuple[LinePeak, ...]:
    """Return what lives at a time, by line, the largest sum first."""
    by_line: dict[str, tuple[int, int]] = {}
    frames = recording.groups()[1]
    for group, (more, added) in recording.living_at(time).items():
        line = str(line_of_birth(frames[group]) or "<unknown>")
        count, total = by_line.get(line, (0, 0))
        by_line[line] = count + more, total + added
    rows = [LinePeak(line, total, count) for line, (count, total) in by_line.items()]
    return tuple(sorted(rows, key=lambda row: (-row.nbytes, row.line)))
