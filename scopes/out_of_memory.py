"""Notes of what is live now, for an error for want of memory that leaves a scope."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from .identity import LIVE, storages_of
from .plain_memory import MEMORY

__all__ = [
    "bytes_text",
    "explain",
    "tell_lines_by",
]

_SHOWN: Final = 5
_TITLE: Final = "most of the live memory of tensors:"
_BUDGET: Final = "the budget of "
# PyTorch's allocator for the CPU raises a plain RuntimeError.
_FAILED: Final = "can't allocate memory"

_by_line: Callable[[], list[tuple[int, str]]] | None = None


def tell_lines_by(function: Callable[[], list[tuple[int, str]]]) -> None:
    """Have a function give the bytes that are live, each with a text that names its line, the most bytes first."""
    global _by_line
    _by_line = function


def explain(error: BaseException) -> None:
    """Add to an exception that leaves a scope what is live, where it is for want of memory and no inner scope did."""
    if MEMORY and isinstance(error, MemoryError):
        MEMORY[0].explain(error)
    if not _is_for_want_of_memory(error):
        return
    notes: list[str] = getattr(error, "__notes__", [])
    if any(note.startswith((_TITLE, _BUDGET)) for note in notes):
        return
    rows = (_by_line and _by_line()) or _by_kind()
    if rows:
        shown = [f"\n  {text}" for _, text in rows[:_SHOWN]]
        if len(rows) > _SHOWN:
            shown.append(f"\n  and {len(rows) - _SHOWN} more")
        error.add_note(_TITLE + "".join(shown))


def _is_for_want_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    cls = type(error)
    if cls.__name__ == "OutOfMemoryError":
        return True
    if cls is not RuntimeError:
        return False
    text: object = error.args[0] if error.args else None
    return type(text) is str and _FAILED in text


def _by_kind() -> list[tuple[int, str]]:
    """The bytes of living resources by kind: no lines are known."""
    counts: dict[str, int] = {}
    storages: dict[str, dict[Hashable, int]] = {}
    for entry in list(LIVE.values()):
        if entry.unit is None and entry() is not None:
            name = entry.kind.name
            counts[name] = counts.get(name, 0) + 1
            found: dict[Hashable, int] = {}
            storages_of(entry, found)
            storages.setdefault(name, {}).update(found)
    rows = [(sum(storages[name].values()), name) for name in counts]
    return [
        (nbytes, f"{bytes_text(nbytes)} in {counts[name]:,} {name} (open a LeakDetector to learn the lines)")
        for nbytes, name in sorted(rows, reverse=True)
        if nbytes > 0
    ]


def bytes_text(nbytes: int) -> str:
    """A number of bytes with a unit, in powers of 1000."""
    if nbytes < 1000:
        return "1 byte" if nbytes == 1 else f"{nbytes} bytes"
    size = float(nbytes)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"
