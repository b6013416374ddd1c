"""The detector: an instrument that remembers where resources were born and released."""

from __future__ import annotations

import threading
import time
from itertools import count
from sys import _getframe  # pyright: ignore[reportPrivateUsage]
from typing import TYPE_CHECKING, Self, final

from .._entry import DEAD, LIVE, Entry
from .._estates import ESTATES, settle
from .._instruments import LISTENERS
from ._collection import collection_paused
from ._edges import HIDDEN_TYPES
from ._report import Report
from ._site import Mark, mark_of, site_of
from ._snapshot import Birth, Disposal, Snapshot, layout_of, survey

if TYPE_CHECKING:
    from types import TracebackType

    from .._scope import DisposeScope

__all__ = ["LeakDetector", "live_tensors", "take_snapshot"]

_Remembered = tuple[Mark | None, float, int, str | None]


@final
class LeakDetector:
    """Watches births and disposals while it is open, and tells afterwards what is still there, from which line and why.

    ``with LeakDetector() as detector:`` watches the block, in all threads. While any detector is open, the message of a
    `DisposedError` tells where the resource was born and where it was disposed. Several may be open at once, each with
    a memory of its own; one that is entered again while it is open goes on until it has been left as often, and one
    that is entered again later starts anew. What was born before is not watched.

    It keeps nothing alive: it refers to resources weakly and keeps of the program's code only code objects.

    Examples
    --------
    >>> import disposescope as ds
    >>> with ds.LeakDetector() as detector:
    ...     with ds.dispose_scope("step") as step:
    ...         kept = step.move_to_outer(ds.zeros((10, 10), dtype="float32") + 1)
    >>> [record] = detector.take_snapshot()
    >>> str(record), record.nbytes, record.scope, record.generation
    ('Tensor float32 (10, 10)', 400, 'step', 1)
    """

    __slots__ = ("__weakref__", "_births", "_closings", "_counter", "_depth", "_disposals", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._births: dict[Entry, _Remembered] = {}
        self._disposals: dict[Entry, Disposal] = {}
        self._counter = count(1)
        self._closings = 0

    def __enter__(self) -> Self:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self._births = {}
                self._disposals = {}
                LISTENERS.append(self)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        with self._lock:
            if self._depth == 0:
                raise RuntimeError("this LeakDetector was left more often than it was entered")
            self._depth -= 1
            if self._depth == 0:
                # By identity: another instrument may say that it equals anything.
                for index, listener in enumerate(LISTENERS):
                    if listener is self:
                        del LISTENERS[index]
                        break

    def take_snapshot(self) -> Snapshot:
        """What was born under this detector and is there now: alive, or disposed under a live reference."""
        if ESTATES:
            settle()
        disposals = self._disposals
        with collection_paused():
            return survey(
                ((entry, Birth(*birth), disposals.get(entry)) for entry, birth in self._births.copy().items()),
                self._closings,
            )

    def report(self, *, time_limit_s: float = 5.0, object_limit: int = 2_000_000) -> Report:
        """What `take_snapshot` finds now, by site, with holders: see `Snapshot.report`."""
        with collection_paused():
            return self.take_snapshot().report(time_limit_s=time_limit_s, object_limit=object_limit)

    @property
    def closings(self) -> int:
        """How many scopes have been closed while it was open."""
        return self._closings

    def recall(self, entry: Entry) -> tuple[Birth | None, Disposal | None]:
        """What it knows of a resource."""
        remembered = self._births.get(entry)
        return None if remembered is None else Birth(*remembered), self._disposals.get(entry)

    def __repr__(self) -> str:
        return f"<LeakDetector {'open' if self._depth else 'closed'}, knows {len(self._births)} births>"

    # ------------------------------------------------------------------ what it is told

    def born(self, entry: Entry) -> None:
        """Remember where: see `Instrument.born`."""
        owner = entry.owner
        # A plain tuple: it is made in a third of the time of a named one, and the garbage collector soon ignores it.
        birth = (
            mark_of(_getframe(1)),
            time.monotonic(),
            self._closings,
            None if owner is None else owner.name or "",
        )
        self._births[entry] = birth
        for member in entry.members:
            # A member that outlives its composite is a resource of its own, from the same line.
            self._births.setdefault(member, birth)

    def moved(self, entry: Entry, source: DisposeScope | None, target: DisposeScope | None) -> None:
        """Nothing to remember: see `Instrument.moved`."""

    def disposed(self, entry: Entry, owner: DisposeScope | None) -> None:
        """Remember where: see `Instrument.disposed`."""
        if entry in self._births:
            self._disposals[entry] = Disposal(mark_of(_getframe(1)), self._closings, layout_of(entry))

    def died(self, entry: Entry) -> None:
        """Forget it: see `Instrument.died`."""
        self._births.pop(entry, None)
        self._disposals.pop(entry, None)

    def opened(self, scope: DisposeScope) -> None:
        """Nothing to remember: see `Instrument.opened`."""

    def closed(self, scope: DisposeScope) -> None:
        """Count it: see `Instrument.closed`."""
        # next() of a counter loses no closing of another thread, which += would.
        self._closings = next(self._counter)

    def story(self, entry: Entry) -> str:
        """Where it was born and disposed: see `Instrument.story`. Of several detectors, the first that knows tells."""
        for listener in LISTENERS:
            if listener is self:
                break
            if isinstance(listener, LeakDetector) and entry in listener._births:
                return ""
        birth = self._births.get(entry)
        if birth is None:
            return ""
        disposal = self._disposals.get(entry)
        released = "" if disposal is None else f", disposed at {site_of(disposal.mark)}"
        return f" (born at {site_of(birth[0])}{released})"


HIDDEN_TYPES.add(LeakDetector)


def take_snapshot() -> Snapshot:
    """All resources of this process that are there now: alive, or disposed while something still references them.

    Site, age and generation are known of what was born while a `LeakDetector` was open that still is.

    Examples
    --------
    >>> import disposescope as ds
    >>> before = ds.take_snapshot()
    >>> kept = ds.ones(3)
    >>> [str(record) for record in ds.take_snapshot().compare_to(before).new]
    ['Tensor float64 (3,)']
    """
    if ESTATES:
        settle()
    with collection_paused():
        return _survey_process()


def live_tensors() -> Snapshot:
    """All resources of this process that are alive now, the largest first. ``str()`` of it is a table.

    Examples
    --------
    >>> import disposescope as ds
    >>> weights = ds.zeros((500, 100))
    >>> max(record.nbytes for record in ds.live_tensors()) >= 400_000
    True
    """
    return take_snapshot().alive().largest_first()


def _survey_process() -> Snapshot:
    detectors = [listener for listener in LISTENERS if isinstance(listener, LeakDetector)]
    closings = [detector.closings for detector in detectors]
    base = closings[0] if closings else 0
    found: list[tuple[Entry, Birth | None, Disposal | None]] = []
    for entry in [*list(LIVE.values()), *list(DEAD.values())]:
        birth: Birth | None = None
        disposal: Disposal | None = None
        for detector, now in zip(detectors, closings, strict=True):
            birth, disposal = detector.recall(entry)
            if birth is not None:
                # Each detector counts closings from its own start.
                birth = birth._replace(closings=birth.closings + base - now)
                break
        found.append((entry, birth, disposal))
    found.sort(key=lambda row: row[1].at_s if row[1] is not None else float("-inf"))
    return survey(found, base)
