"""What was born and freed in a pass: bytes, lines, and times of birth and death.

Times are counted in births: birth number n happens at time n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from ...scopes.base.sites import Mark, Role, Site, imports_modules, role_of, site_of
from ..report.peak import LinePeak

__all__ = [
    "Birth",
    "Recording",
    "ServedBy",
    "line_of_birth",
    "line_text",
    "living_rows",
    "user_place",
]


@final
class ServedBy(IntEnum):
    """How a birth was served. The numbers are those of ``tensors/arena/src/passes.c``.

    Attributes
    ----------
    RECORDED
        By the pool: there was no plan yet.
    SERVED
        By the slab.
    ESCAPES
        By the pool, as the plan says: in an earlier pass the same birth outlived the pass.
    UNKNOWN
        By the pool: the plan has no further birth of that line.
    LARGER
        By the pool: the plan has a smaller birth there.
    IN_USE
        By the pool: a living block still has these bytes of the slab.
    RESIZED
        The new block of a block that was given another size.
    ELSEWHERE
        Born on another thread than the one that entered the pass.
    NOTED
        Memory of PyTorch's, which PyTorch serves itself.
    SAVED
        Memory of PyTorch's that a graph may have saved.
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
        The bytes that were asked for; 0 where they were refused.
    died : int or None
        The time of its death; None where it outlived the pass.
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
        """Return whether the slab should have served it, and did not."""
        return self.nbytes > 0 and self.outcome in _MISSES

    @property
    def is_planned(self) -> bool:
        """Return whether a plan has a slot for it."""
        is_elsewhere = self.is_noted or self.outcome in (ServedBy.RESIZED, ServedBy.ELSEWHERE)
        return self.nbytes > 0 and not is_elsewhere

    @property
    def is_elsewhere(self) -> bool:
        """Return whether another thread made it than the one that entered the pass."""
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
        The births in their order.
    lower, upper, sizes : array of int64, shape (n,)
        For each birth: its time, the first time at which it is dead, and its bytes. `upper` is the
        end of the pass where it outlived the pass.
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
        """Return the group of each birth, and the frames of each group.

        Births with equal frames are a group. A group is an index into the list of frames.
        """
        if self._groups is None:
            numbers: dict[tuple[int, ...], int] = {}
            frames: list[tuple[Mark, ...]] = []
            of_births = np.zeros(len(self.births), np.int64)
            for number, birth in enumerate(self.births):
                # By the ``id`` of the code: the hash of a code object is that of all its contents,
                # and slow.
                key = tuple(each for code, offset in birth.places for each in (id(code), offset))
                group = numbers.setdefault(key, len(frames))
                if group == len(frames):
                    frames.append(birth.places)
                of_births[number] = group
            self._groups = of_births, frames
        return self._groups

    def live_nbytes(self, lives: tuple[NDArray[np.int64], ...] | None = None) -> NDArray[np.int64]:
        """Return the live bytes at each time.

        Parameters
        ----------
        lives : tuple of array, optional
            `lower`, `upper` and `sizes` to take instead of the recorded ones.
        """
        lower, upper, sizes = (self.lower, self.upper, self.sizes) if lives is None else lives
        count = len(self.births)
        changes = np.zeros(count + 1, np.int64)
        np.add.at(changes, lower, sizes)
        np.subtract.at(changes, upper, sizes)
        live: NDArray[np.int64] = np.cumsum(changes[:count])
        return live

    def peak(self) -> tuple[int, int]:
        """Return the time of the (first) peak and its bytes; (0, 0) without births."""
        if not self.births:
            return 0, 0
        live = self.live_nbytes()
        at = int(live.argmax())
        return at, int(live[at])

    def peak_without_notes(self) -> int:
        """Return the most live bytes at once, without the memory of other libraries."""
        if not self.births:
            return 0
        own = np.array([0 if birth.is_noted else birth.nbytes for birth in self.births], np.int64)
        return int(self.live_nbytes((self.lower, self.upper, own)).max())

    def living_at(self, time: int) -> dict[int, tuple[int, int]]:
        """Return for each group how many of its births live at a time, and their bytes."""
        alive = (self.lower <= time) & (time < self.upper) & (self.sizes > 0)
        groups, _ = self.groups()
        found: dict[int, tuple[int, int]] = {}
        for group, nbytes in zip(groups[alive].tolist(), self.sizes[alive].tolist(), strict=True):
            count, total = found.get(group, (0, 0))
            found[group] = count + 1, total + nbytes
        return found


# Which of the frames at a birth is the user's.


def user_place(places: tuple[Mark, ...]) -> int:
    """Return the index of the user's innermost frame at a birth.

    Where no frame is the user's: that of generated code, or else the outermost frame. Frames of
    Python's own code that imports modules are passed over.
    """
    own = [number for number, (code, _) in enumerate(places) if not imports_modules(code.co_filename)]
    roles = [role_of(places[number][0]) for number in own]
    found = next((roles.index(role) for role in (Role.USER, Role.GENERATED) if role in roles), len(own) - 1)
    return own[found] if own else len(places) - 1


def line_of_birth(places: tuple[Mark, ...]) -> Site | None:
    """Return the line of a birth; None where no Python code ran."""
    return site_of(places[user_place(places)]) if places else None


def line_text(birth: Birth) -> str:
    """Return the line of a birth as text."""
    return str(line_of_birth(birth.places) or "<unknown>")


def living_rows(recording: Recording, time: int) -> tuple[LinePeak, ...]:
    """Return what lives at a time by line, the line with the most bytes first."""
    by_line: dict[str, tuple[int, int]] = {}
    _, frames = recording.groups()
    for group, (more, added) in recording.living_at(time).items():
        line = str(line_of_birth(frames[group]) or "<unknown>")
        count, total = by_line.get(line, (0, 0))
        by_line[line] = count + more, total + added
    rows = [LinePeak(line, total, count) for line, (count, total) in by_line.items()]
    return tuple(sorted(rows, key=lambda row: (-row.nbytes, row.line)))
