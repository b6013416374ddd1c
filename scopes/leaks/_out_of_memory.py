"""An error for want of memory that leaves a scope gets notes: what is live now, by the lines that made it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from .._entry import LIVE
from .._memory import EXPLAINERS
from .._parts import storages_of
from ._log import LOG
from ._site import site_of
from .reporters._text import bytes_text

__all__ = ["explain"]

_SHOWN: Final = 5
_TITLE: Final = "most of the live memory of tensors:"
_BUDGET: Final = "the budget of "
# PyTorch's allocator for the CPU raises a plain RuntimeError.
_FAILED: Final = "can't allocate memory"


def explain(error: BaseException) -> None:
    """Add to an error what is live, where it is for want of memory and no inner scope has done so."""
    if not _is_for_want_of_memory(error):
        return
    notes: list[str] = getattr(error, "__notes__", [])
    if any(note.startswith((_TITLE, _BUDGET)) for note in notes):
        return
    rows = _by_site() or _by_kind()
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


def _by_site() -> list[tuple[int, str]]:
    """What a detector knows, the most bytes first."""
    found: dict[tuple[str, str], tuple[int, str]] = {}
    for number in range(LOG.site_count()):
        kind, device, _, places, _, live, nbytes, _ = LOG.site(number)
        if nbytes > 0:
            # A tensor and the array that is its memory, and was there before it, are of one line: told once.
            key = str(site_of(places[0] if places else None) or "<unknown>"), device
            row = nbytes, f"{bytes_text(nbytes)} in {round(live):,} {kind} on {device} at {key[0]}"
            if nbytes >= found.get(key, row)[0]:
                found[key] = row
    return sorted(found.values(), key=lambda row: (-row[0], row[1]))


def _by_kind() -> list[tuple[int, str]]:
    """What the scopes know of resources: no lines."""
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


EXPLAINERS.append(explain)
