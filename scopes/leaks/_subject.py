"""What a record is of: a resource, or memory that no resource stands for."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal, Protocol, TypeAlias

from .._entry import Entry

__all__ = ["Escape", "Subject", "UnheldMemory"]

Escape = Literal["due", "disposed"]
"""Memory that outlived its scope, or its tensor, which was disposed."""


class UnheldMemory(Protocol):
    """Memory that was seen to be born, known by itself: a plain array's, or the storage of a tensor that is gone.

    It is not kept alive. Called, it tells whether it is there yet: it gives itself, or None.
    """

    @property
    def identity(self) -> Hashable:
        """As `Kind.storages` tells it of a tensor that uses the memory."""
        ...

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        ...

    @property
    def kind(self) -> str:
        """The name of the kind of tensor that it was born as."""
        ...

    @property
    def device(self) -> str:
        """Where it is."""
        ...

    @property
    def escape(self) -> Escape | None:
        """In which way it has outlived its scope, or its tensor; None where it has not, or was moved out."""
        ...

    def __call__(self) -> object:
        """Itself, or None where it is gone."""
        ...


Subject: TypeAlias = Entry | UnheldMemory
