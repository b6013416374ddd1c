"""What is known of one resource that is still there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from ._site import Site

__all__ = ["Record", "State"]

State = Literal["alive", "disposed"]
"""``"alive"``, or ``"disposed"`` while something still references it."""


@final
@dataclass(frozen=True, slots=True)
class Record:
    """A resource at the time of a snapshot, without a reference to it.

    Attributes
    ----------
    kind : str
        The name of its kind.
    shape : tuple of int or None
        Its shape, where its kind has one.
    dtype : str or None
        The name of its dtype, where its kind has one.
    nbytes : int
        The bytes of the storages that it pins, as a whole: those of a view's base too. 0 once it is disposed.
    used_nbytes : int
        The bytes of its own elements; fewer than `nbytes` for a view.
    storages : tuple of (int, int)
        Those storages: a number that is the same for the same storage in one snapshot, and its bytes.
    site : Site or None
        Where it was born; None where no detector was watching.
    disposal : Site or None
        Where it was released.
    scope : str or None
        The name of the scope that it was born in, ``""`` for a scope without a name, None where it was born outside
        every scope. Without a detector, the scope that owns it now.
    age_s : float or None
        Seconds since its birth.
    generation : int or None
        How many scopes, of the whole process, have been closed since its birth.
    state : {"alive", "disposed"}
        Whether it is alive, or was disposed while something still references it.
    frames : tuple of Site
        The line of its birth and those that led to it, innermost first, as many as the detector kept.
    device : str or None
        Where it is, or was.
    op : str or None
        The call that made it, where it is known.
    """

    kind: str
    shape: tuple[int, ...] | None
    dtype: str | None
    nbytes: int
    used_nbytes: int
    storages: tuple[tuple[int, int], ...]
    site: Site | None
    disposal: Site | None
    scope: str | None
    age_s: float | None
    generation: int | None
    state: State
    frames: tuple[Site, ...] = ()
    device: str | None = None
    op: str | None = None

    @property
    def is_view(self) -> bool:
        """Whether it pins more memory than it uses."""
        return self.state == "alive" and self.used_nbytes < self.nbytes

    def __str__(self) -> str:
        parts = [self.kind]
        if self.dtype is not None:
            parts.append(self.dtype)
        if self.shape is not None:
            parts.append(repr(self.shape))
        return " ".join(parts)
