"""Compare two reports of one program: which leaks are new, gone, grown and shrunk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from .leaks import Leak
from .report import Report, Verdict

__all__ = [
    "Change",
    "Difference",
    "difference_of",
]


@final
@dataclass(frozen=True, slots=True)
class Change:
    """A leak in the old and in the new report.

    Attributes
    ----------
    leak : Leak
        The leak in the new report; in the old report if it is gone. Of several with the same
        fingerprint, the one with the most bytes.
    old_count, new_count : int
        The number of resources in each report; 0 where there is no such leak.
    old_nbytes, new_nbytes : int
        The bytes that these pin.
    """

    leak: Leak
    old_count: int
    new_count: int
    old_nbytes: int
    new_nbytes: int


@final
@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two reports. Each tuple is ordered by bytes, the most first.

    Attributes
    ----------
    new : tuple of Change
        Leaks that only the new report has.
    gone : tuple of Change
        Leaks that only the old report has.
    grown : tuple of Change
        Leaks in both that pin more bytes in the new one, or equal bytes with more resources.
    shrunk : tuple of Change
        Leaks in both that pin fewer bytes in the new one, or equal bytes with fewer resources.
    same : tuple of Change
        Leaks in both with equal count and bytes.
    old_nbytes, new_nbytes : int
        The bytes that all leaks pin.
    old_verdict, new_verdict : str or None
        The verdicts of the reports: see `Report.verdict`.
    undecided : tuple of str
        What could not be judged in a report whose verdict is ``"undecided"``.
    """

    new: tuple[Change, ...]
    gone: tuple[Change, ...]
    grown: tuple[Change, ...]
    shrunk: tuple[Change, ...]
    same: tuple[Change, ...]
    old_nbytes: int
    new_nbytes: int
    old_verdict: Verdict | None
    new_verdict: Verdict | None
    undecided: tuple[str, ...]


def difference_of(old: Report, new: Report) -> Difference:
    """Compare the leaks of two reports.

    Leaks are the same if their fingerprints are equal, which do not change with the run, the folder
    or the lines above. Suppressed leaks, kept tensors and left-over variables are not compared.
    """
    before, after = _by_fingerprint(old.leaks), _by_fingerprint(new.leaks)
    found: dict[str, list[Change]] = {"new": [], "gone": [], "grown": [], "shrunk": [], "same": []}
    for fingerprint in dict.fromkeys((*after, *before)):
        earlier, later = before.get(fingerprint, []), after.get(fingerprint, [])
        change = Change(
            max(later or earlier, key=lambda leak: (leak.nbytes, leak.count)),
            sum(leak.count for leak in earlier),
            sum(leak.count for leak in later),
            sum(leak.nbytes for leak in earlier),
            sum(leak.nbytes for leak in later),
        )
        old_size, new_size = (change.old_nbytes, change.old_count), (change.new_nbytes, change.new_count)
        if not earlier or not later:
            found["gone" if later == [] else "new"].append(change)
        else:
            found["same" if old_size == new_size else "grown" if old_size < new_size else "shrunk"].append(change)
    rows = {name: tuple(sorted(changes, key=_largest_change_first)) for name, changes in found.items()}
    undecided = [
        f"{name}: {line}"
        for name, report in (("old", old), ("new", new))
        if report.verdict in ("undecided", None)
        for line in report.undecided
    ]
    return Difference(
        **rows,
        old_nbytes=old.nbytes,
        new_nbytes=new.nbytes,
        old_verdict=old.verdict,
        new_verdict=new.verdict,
        undecided=tuple(undecided),
    )


def _by_fingerprint(leaks: Iterable[Leak]) -> dict[str, list[Leak]]:
    groups: dict[str, list[Leak]] = {}
    for leak in leaks:
        groups.setdefault(leak.fingerprint, []).append(leak)
    return groups


def _largest_change_first(change: Change) -> tuple[int, int, str, str]:
    leak = change.leak
    changed = abs(change.new_nbytes - change.old_nbytes)
    return (-changed, -max(change.new_count, change.old_count), str(leak.site), leak.fingerprint)
