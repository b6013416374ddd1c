"""The workspace: a loop whose passes are recorded, planned, and served from one slab.

The first pass of each key is recorded. At its end its plan is made, and later passes with that key
are served from the slab where it fits; whatever differs, the pool of the arena serves, as in any
scope. A plan is never trusted: that the bytes of a slot are dead is looked up at each service, in
compiled code (``tensors/arena/src/passes.c``), so that a plan that does not fit costs memory, and
never data.

What outlives its pass keeps its memory. If that lies in the slab, the slab is given up: the next
pass has a new one, and the pages of the old one go with the blocks in it. From then on the pool
serves that birth.

Each thread has its own plans and slab. One pass of a thread is served at a time: another one that
begins while it is open, in a task or inside it, is served by the pool.
"""

from __future__ import annotations

import contextvars
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import wraps
from operator import index
from pathlib import Path
from sys import _getframe
from types import FrameType, TracebackType
from typing import Any, Final, ParamSpec, SupportsIndex, TypeVar, cast, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..leaks.peaks.advice import advise
from ..leaks.peaks.program import pass_of_workspace
from ..leaks.peaks.recording import Birth, Recording, ServedBy, line_of_birth, line_text, living_rows, user_place
from ..leaks.report.peak import PERSISTENT_ARRAYS, LinePeak
from ..planner.plan import Plan, plan, seconds_of
from ..planner.table import Table, write_table
from ..scopes.base.errors import ScopeNestingError, WorkspaceError
from ..scopes.base.options import EscapesOption, check_escapes_option
from ..scopes.base.process import at_forks, bytes_text, hold_across_forks, parse_budget
from ..scopes.base.sites import Mark
from ..scopes.compiled import with_undo
from ..scopes.context import OPEN
from ..scopes.framework import FRAMEWORKS
from ..scopes.scope import DisposeScope
from ..tensors.arena.extension import ARENA
from .results import Peak, Replan, WorkspaceStatistics, times

__all__ = ["Run", "Workspace"]

_FIRST_LIMIT_S: Final = 0.05
"""The program waits so many seconds for a plan: the time limit that `plan` has by default."""
_PLANS_AT_MOST: Final = 8
"""So many plans are made for a key by themselves: there is none for passes that all differ."""
_SLOTS_AT_MOST: Final = 20_000
"""So many births of a pass have a slot in the slab, the largest.

Measured: a plan for 20,000 short lives takes 0.15 s of CPU time, one for 200,000 takes 1.2 s.
"""
_ALIGNMENT: Final = 64
"""Blocks in a slab begin at multiples of it, as the arena's do: see ARENA_ALIGNMENT in pool.h."""
_SPREAD_FROM: Final = 32 << 10
"""Blocks of so many bytes are spread; as many fit the first cache of most CPUs."""
_SPREAD: Final = 9 * _ALIGNMENT
"""By so many bytes, as the pool spreads large blocks: see `_room_of`, and PLACE_STEP in pool.c."""

_REASONS_AT_MOST: Final = 500
"""So many different reasons are kept; passes that all differ would add new ones for ever."""
_OTHER_REASONS: Final = "other lines or sizes"

_HIGHER: Final = 1.01
"""A pass is read again for its peak where that is so many times the highest one before."""
_PAGE: Final = 4096
"""A slab has whole pages."""

_NO_SLAB: Final = "there was no memory for the slab"
_OTHER_PASS: Final = "another pass of this thread was open, and has the slab"

_LOCK: Final = threading.RLock()
hold_across_forks(_LOCK, 8)
_WORKSPACES: Final[weakref.WeakSet[Workspace]] = weakref.WeakSet()


P = ParamSpec("P")
R = TypeVar("R")


def _in_no_scope(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function whose arrays are no births of the scope, or the pass, around its call."""

    @wraps(function)
    def outside(*args: P.args, **kwargs: P.kwargs) -> R:
        return contextvars.Context().run(function, *args, **kwargs)

    return outside


@final
class _Slot:
    """A birth that a plan expects."""

    __slots__ = ("birth", "escapes", "nbytes", "offset", "places", "trace")

    def __init__(
        self, birth: int, nbytes: int, places: tuple[Mark, ...], trace: tuple[Mark, ...], escapes: bool
    ) -> None:
        self.birth = birth
        self.nbytes = nbytes
        self.places = places
        # Those of the places that a birth in a later pass must have.
        self.trace = trace
        self.escapes = escapes
        self.offset = -1


@final
class _Course:
    """The passes of one key on one thread: the recording, its plan, and what did not fit."""

    __slots__ = (
        "_has_notes",
        "found",
        "has_served",
        "key",
        "most_nbytes",
        "observed",
        "plans",
        "reasons",
        "recording",
        "served",
        "slots",
        "verified",
        "wants_notes",
    )

    def __init__(self, key: Hashable, verified: bool) -> None:
        self.key = key
        self.verified = verified
        # What is planned for; and what the peak is found in, with the notes of other libraries.
        self.recording: Recording | None = None
        self.observed: Recording | None = None
        self.wants_notes = True
        self._has_notes = False
        self.slots: list[_Slot] = []
        self.found: Plan | None = None
        self.served: Any = None
        self.has_served = False
        self.plans = 0
        self.reasons: set[str] = set()
        # The highest peak of a pass, without and with what other libraries note.
        self.most_nbytes = {False: 0, True: 0}

    @property
    def planned(self) -> list[_Slot]:
        """The slots that lie in the slab."""
        return [slot for slot in self.slots if slot.offset >= 0]

    @property
    def bound_nbytes(self) -> int:
        """The most bytes that what lies in the slab has in use at once, as requested."""
        if self.recording is None:
            return 0
        numbers = np.array([slot.birth for slot in self.planned], np.int64)
        if not len(numbers):
            return 0
        sizes = np.array([slot.nbytes for slot in self.planned], np.int64)
        return int(
            self.recording.live_nbytes((self.recording.lower[numbers], self.recording.upper[numbers], sizes)).max()
        )

    def read(self, served: Any) -> list[Birth]:
        """Return the births of an ended pass; what the slab served has the places of its slot."""
        births: list[Birth] = []
        rows: list[tuple[int, int, int, int, tuple[Mark, ...]]] = served.births()
        for nbytes, died, outcome, slot, places in rows:
            known = self.slots[slot].places if slot >= 0 and not places else places
            births.append(
                Birth(nbytes, None if died < 0 else died, ServedBy(outcome), None if slot < 0 else slot, known)
            )
        return births

    def learn(self, births: list[Birth], noted: bool, time_limit: float) -> None:
        """Plan for a pass, in the place of the plan before; that stays where this fails.

        A slot keeps the largest size that it has had, and stays an escape.
        """
        slots: list[_Slot] = []
        running = _running_code()
        # Births of one line share their places. What the slab served has those of an earlier pass.
        traces = {id(slot.places): slot.trace for slot in self.slots}
        for number, birth in enumerate(births):
            if not birth.is_planned:
                continue
            before = None if birth.slot is None or birth.outcome is ServedBy.LARGER else self.slots[birth.slot]
            nbytes = birth.nbytes if before is None else max(before.nbytes, birth.nbytes)
            escapes = birth.died is None or (before is not None and before.escapes)
            trace = traces.get(id(birth.places))
            if trace is None:
                trace = traces[id(birth.places)] = _trace_of(birth.places, running)
            slots.append(_Slot(number, nbytes, birth.places, trace, escapes))
        recording = Recording(births)
        if self.recording is None:
            # Where it cannot be planned for, its peak is known all the same.
            self.recording = recording
        self.observe(recording, noted)
        self._plan(recording, slots, time_limit)

    def observe(self, recording: Recording, noted: bool) -> None:
        """Find the peak in a recording from now on, if it is no lower than that known before.

        Other libraries note their memory only in the first pass. Where they did, and not in this
        pass, the next one is noted too, and the peak stays until then.
        """
        if noted:
            self.wants_notes = False
            self._has_notes = any(birth.is_noted for birth in recording.births)
            self.most_nbytes[False] = max(self.most_nbytes[False], recording.peak_without_notes())
        elif self._has_notes:
            self.wants_notes = True
            if self.observed is not None and recording.peak()[1] <= self.observed.peak()[1]:
                return
        if self.observed is None or recording.peak()[1] >= self.observed.peak()[1]:
            self.observed = recording

    def notes(self, limit: int | None) -> bool:
        """Return whether other libraries note their memory in the next pass.

        A limit judges every pass.
        """
        return self.wants_notes or (self._has_notes and limit is not None)

    def improve(self, time_limit: float) -> None:
        """Look for a lower plan for what was recorded."""
        if self.recording is not None and self.found is not None:
            self._plan(self.recording, self.slots, time_limit, below=self.found.height)

    def _plan(self, recording: Recording, slots: list[_Slot], time_limit: float, below: int | None = None) -> None:
        wanted = [slot for slot in slots if not slot.escapes]
        if len(wanted) > _SLOTS_AT_MOST:
            wanted = sorted(wanted, key=lambda slot: -slot.nbytes)[:_SLOTS_AT_MOST]
        found = plan(self._buffers(recording, wanted), time_limit=time_limit)
        if below is not None and found.height >= below:
            return
        offsets = dict(zip((id(slot) for slot in wanted), found.offsets.tolist(), strict=True))
        traces = {id(slot.trace): slot.trace for slot in slots}
        numbers = {identity: number for number, identity in enumerate(traces)}
        rows = tuple((numbers[id(slot.trace)], slot.nbytes, offsets.get(id(slot), -1)) for slot in slots)
        served = ARENA.PassPlan(tuple(traces.values()), rows, self.verified)
        for slot in slots:
            slot.offset = offsets.get(id(slot), -1)
        self.recording, self.slots, self.found, self.served = recording, slots, found, served
        self.has_served = False
        self.plans += 1

    def exclude(self, numbers: list[int]) -> None:
        """Have the pool serve some slots from now on."""
        for number in numbers:
            self.slots[number].escapes = True
            self.slots[number].offset = -1
            self.served.exclude(number)

    def table(self) -> tuple[Table, Plan]:
        """Return what lies in the slab, and where."""
        planned = self.planned
        offsets = np.array([slot.offset for slot in planned], np.int64)
        if self.recording is None:
            # A first pass that was refused has a peak, and nothing in the slab.
            return Table((), np.zeros((0, 3), np.int64)), Plan(offsets, 0, 0)
        rows = np.array(self._buffers(self.recording, planned), np.int64).reshape(-1, 3)
        height = 0 if self.found is None else self.found.height
        bound = 0 if self.found is None else self.found.lower_bound
        return Table(tuple(str(slot.birth) for slot in planned), rows), Plan(offsets, height, bound)

    def _buffers(self, recording: Recording, slots: list[_Slot]) -> list[tuple[int, int, int]]:
        return [
            (int(recording.lower[slot.birth]), int(recording.upper[slot.birth]), _room_of(slot.nbytes, self.verified))
            for slot in slots
        ]


@final
class _Thread:
    """A workspace on one thread: a slab, a course for each key, and the pass that it serves.

    Of the passes that are open at once, the first is served from the slab.
    """

    __slots__ = ("__weakref__", "courses", "open", "slab")

    def __init__(self) -> None:
        self.slab: Any = None
        self.courses: dict[Hashable, _Course] = {}
        self.open: Run | None = None

    def is_open(self) -> bool:
        """Return whether a pass is open; one whose end was interrupted is ended."""
        if self.open is not None and self.open.is_over():
            self.open.forget()
            self.open = None
        return self.open is not None

    def slab_for(self, course: _Course) -> Any:
        """Return a slab as large as the largest plan, a new one where the last is too small."""
        height: int = course.served.height
        if not course.has_served:
            # The slab serves from now on what the pool has cached since the recorded pass.
            ARENA.empty_cache()
            course.has_served = True
        if self.slab is None or self.slab.nbytes < height:
            self.give_up_slab()
            self.slab = ARENA.Slab(max(self.height(), 1), course.verified)
        return self.slab

    def height(self) -> int:
        """Return the height of the largest plan; 0 if there is none."""
        # A snapshot: the thread may meet another key meanwhile.
        courses = tuple(self.courses.values())
        return max((course.served.height for course in courses if course.served is not None), default=0)

    def slab_nbytes(self) -> int:
        """Return the bytes of the slab, or those that it will have, not rounded to pages."""
        slab, height = self.slab, self.height()
        return height if slab is None or slab.nbytes < height + _PAGE else slab.nbytes

    def give_up_large_slab(self) -> None:
        """Give up a slab that is larger, by a page or more, than the largest plan."""
        if self.slab is not None and self.slab.nbytes >= self.height() + _PAGE:
            self.give_up_slab()

    def give_up_slab(self) -> None:
        """Serve nothing from the slab any more: only the pages of blocks in use stay."""
        self.slab = None


@final
class Run:
    """A pass of a workspace, as a context manager; entering it gives the scope."""

    __slots__ = (
        "_course",
        "_escapes",
        "_is_forgotten",
        "_key",
        "_pass",
        "_pool_reason",
        "_scope",
        "_stops",
        "_thread",
        "_workspace",
    )

    def __init__(self, workspace: Workspace, key: Hashable, escapes: EscapesOption) -> None:
        self._workspace = workspace
        self._key = key
        self._escapes: EscapesOption = escapes
        self._scope: DisposeScope | None = None
        self._thread: _Thread | None = None
        self._course: _Course | None = None
        self._pass: Any = None
        self._stops: list[Callable[[], object]] = []
        # Why the pool serves all of this pass, although there is a plan.
        self._pool_reason: str | None = None
        self._is_forgotten = False

    def __enter__(self) -> DisposeScope:
        workspace = self._workspace
        if self._scope is not None:
            raise ScopeNestingError(
                f"a pass of workspace {workspace.name!r} is entered once: write run() in each with statement",
                scope=repr(self._scope),
            )
        # Set, not given: to read options by their names takes as long as all else of a scope.
        scope = DisposeScope(workspace.name)
        scope.escapes = self._escapes
        self._thread = thread = workspace._thread()
        self._course = course = thread.courses.get(self._key) or workspace._new_course(thread, self._key)
        refusal = workspace._refusals.get(self._key)
        if refusal is not None:
            raise MemoryError(refusal)
        self._scope = scope
        try:
            self._pass = self._pass_of(thread, course)
            try:
                scope.__enter__()
                self._pass.begin(scope)
                if thread.open is self and course.notes(workspace.limit):
                    self._note_lives()
            except BaseException as error:
                self._stop_noting()
                if scope._state == OPEN:
                    scope.__exit__(type(error), error, error.__traceback__)
                raise
        except BaseException:
            self._end(False)
            raise
        return scope

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._scope is None:
            raise ScopeNestingError(
                f"a pass of workspace {self._workspace.name!r} was left without having been entered", scope=repr(self)
            )
        is_whole = False
        try:
            try:
                self._stop_noting()
            finally:
                self._scope.__exit__(kind, error, traceback)
            is_whole = kind is None
        finally:
            refusal = self._end(is_whole)
        if refusal is not None:
            if error is None:
                raise refusal
            error.add_note(str(refusal))

    def _leave_anyway(self, error: BaseException) -> None:
        """Leave the scope where `__exit__` was interrupted before it did."""
        scope = self._scope
        if scope is not None and scope._state == OPEN:
            try:
                self._stop_noting()
            finally:
                scope.__exit__(type(error), error, error.__traceback__)
                self._end(False)

    def _pass_of(self, thread: _Thread, course: _Course) -> Any:
        """Return what records the pass, and serves it from the slab where that is its turn."""
        if thread.is_open():
            self._pool_reason = None if course.served is None else _OTHER_PASS
            return ARENA.Pass()
        thread.open = self
        if course.served is None:
            return ARENA.Pass()
        try:
            return ARENA.Pass(course.served, thread.slab_for(course))
        except MemoryError:
            self._pool_reason = _NO_SLAB
            return ARENA.Pass()

    def _note_lives(self) -> None:
        for framework in FRAMEWORKS.with_own("note_lives"):
            stop = framework.note_lives(self._pass)
            if stop is not None:
                self._stops.append(stop)

    def _stop_noting(self) -> None:
        while self._stops:
            self._stops.pop()()

    def _end(self, is_whole: bool) -> WorkspaceError | None:
        """End the pass, whatever came of it. Returns what is wrong with it."""
        escaped_slab = 0 if self._pass is None else self._pass.end(self._workspace._totals)
        thread, works = self._thread, False
        if thread is not None and thread.open is self:
            thread.open, works = None, True
        if self._pass is None or self._is_forgotten:
            return None
        return self._workspace._ended(self, escaped_slab, is_whole=is_whole, works=works)

    def is_over(self) -> bool:
        """Return whether its scope is closed."""
        return self._scope is not None and self._scope.closed

    def forget(self) -> None:
        """End the recording, and the service from the slab; the scope stays open."""
        self._is_forgotten = True
        if self._pass is not None:
            self._pass.end()


# mypy takes no method for another; it has the same signature.
_wrapped: Final = with_undo
Run.__exit__ = _wrapped((Run.__exit__, Run._leave_anyway))  # type: ignore[method-assign]  # same signature


@final
class Workspace:
    """The memory of a loop: recorded in the first pass, planned, and served from one slab later.

    A pass is a `dispose_scope` that `run` opens. The first one with a key is recorded: every birth
    of a plain array's memory, its line, bytes and death. From the next pass on, what the plan
    expects is served from one slab, which is as large as the largest plan needs. The pool of the
    arena serves everything else, and `statistics` counts the reasons. An array is never moved,
    copied or overwritten: bytes of the slab are handed out only while nothing that is alive has
    them.

    Parameters
    ----------
    name : str
        Shown in messages; the name of the scopes.
    limit : int or str, optional
        The bytes that a pass may have in use at once, persistent arrays included, such as
        ``"2GiB"``. A pass that had more is refused from then on: entering the next one with that
        key raises `MemoryError`, which says at which line the peak is, what lives there, and what
        would lower it.
    strict : bool, default False
        Raise `WorkspaceError` at the end of a pass in which the slab missed a birth, or that the
        pool served as a whole although there is a plan for it.
    verify : bool, default False
        Fill dead bytes of the slab with a pattern, put guard bytes behind each block, and raise
        `WorkspaceError` at the end of a pass that finds either written to. For tests; it costs
        time.

    Notes
    -----
    Memory that is freed by reference count dies at that moment, as everywhere. Variables of the
    function that runs the loop hold their arrays into the next pass: an array that a pass binds to
    such a variable outlives the pass. If the step is a function of its own, the plan can serve more
    arrays.

    Each thread has its own plans and its own slab. Of the passes that a thread has open at once,
    such as in tasks, one is served from the slab. In a forked child the workspace begins anew.

    Examples
    --------
    >>> import numpy as np
    >>> import disposescope as ds
    >>> def step(batch):
    ...     hidden = np.maximum(batch @ batch.T, 0)
    ...     return float(hidden.sum())
    >>> workspace = ds.Workspace("step")
    >>> for _ in range(3):
    ...     with workspace.run():
    ...         total = step(np.ones((64, 64)))
    >>> found = workspace.statistics()
    >>> found.passes, found.hits > 0, found.misses, found.ratio < 1.05
    (3, True, 0, True)
    """

    def __init__(
        self, name: str, *, limit: int | str | None = None, strict: bool = False, verify: bool = False
    ) -> None:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
            raise TypeError(f"Workspace: name must be a str, not {name!r}")
        self.name: Final = name
        for option, flag in (("strict", strict), ("verify", verify)):
            if not isinstance(flag, (bool, np.bool_)):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
                raise TypeError(f"Workspace: {option} must be True or False, not {flag!r}")
        self.limit: Final = None if limit is None else parse_budget(limit, "Workspace: limit")
        self.strict: Final = bool(strict)
        self.verify: Final = bool(verify or ARENA.debug)
        self._persistent: dict[str, NDArray[Any]] = {}
        self._begin()
        with _LOCK:
            _WORKSPACES.add(self)

    def _begin(self) -> None:
        self._here = threading.local()
        self._threads: weakref.WeakSet[_Thread] = weakref.WeakSet()
        # The latest that was recorded, and for each key: that of a thread that has ended, too.
        self._last: _Course | None = None
        self._recorded: dict[Hashable, _Course] = {}
        # By key, the recording with the highest peak, on any thread.
        self._highest: dict[Hashable, Recording] = {}
        # By key, why its passes are refused, on every thread.
        self._refusals: dict[Hashable, str] = {}
        self._totals = ARENA.PassTotals()
        # Passes that the pool served as a whole, although planned; each counts as one miss more.
        self._served_by_pool = 0
        self._reasons: Counter[str] = Counter()
        self._replans: list[Replan] = []

    def __repr__(self) -> str:
        return f"<Workspace {self.name!r}, {self._passes} passes>"

    def __reduce__(self) -> Any:
        raise TypeError("a workspace belongs to its process and cannot be pickled or copied")

    def run(self, key: Hashable = None, *, escapes: EscapesOption = "dispose") -> Run:
        """Open a pass: a `dispose_scope` as a context manager.

        Parameters
        ----------
        key : hashable, optional
            Passes with equal keys have one plan, such as those of batches of one length. All plans
            of a thread share one slab, which fits the largest.
        escapes : {"dispose", "keep", "raise"}, default "dispose"
            As of `dispose_scope`.

        Raises
        ------
        MemoryError
            On entering: a pass with this key has exceeded the limit.
        TypeError
            The key is not hashable.
        ValueError
            `escapes` is none of the three.
        """
        check_escapes_option(escapes, "run")
        return Run(self, _checked_key(key, "run"), escapes)

    def persistent(
        self, name: str, shape: SupportsIndex | Sequence[SupportsIndex], dtype: DTypeLike = np.float64
    ) -> NDArray[Any]:
        """Return an array of zeros that lives as long as the workspace, in no pass and no plan.

        The second call with a name returns the same array.

        Raises
        ------
        TypeError
            The name is no str, the shape no int and no sequence of them, or the dtype none.
        ValueError
            The array of that name has another shape or dtype; a length is negative; or the dtype
            does not say how large an element is, or is an array of others.
        """
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
            raise TypeError(f"persistent: name must be a str, not {name!r}")
        expected, wanted = _checked_shape(shape), np.dtype(dtype)
        if wanted.itemsize == 0 or wanted.subdtype is not None:
            raise ValueError(f"persistent: an element of dtype {dtype!r} has no size, or is an array: give its own")
        with _LOCK:
            array = self._persistent.get(name)
            if array is None:
                # Without a scope, and with NumPy's own allocator.
                array = contextvars.Context().run(np.zeros, expected, wanted)
                self._persistent[name] = array
        if array.shape != expected or array.dtype != wanted:
            raise ValueError(
                f"persistent: {name!r} is an array of shape {array.shape} and dtype {array.dtype}, "
                f"not of {expected} and {wanted}"
            )
        return array

    @_in_no_scope
    def plan(self, *, time_limit: float = 10.0) -> WorkspaceStatistics:
        """Look for better plans, for each key of this thread.

        The slab is made anew where that makes it smaller.

        Parameters
        ----------
        time_limit : float, default 10.0
            How many seconds the search may take in all, after the fast plans of each key that it
            begins with.

        Raises
        ------
        TypeError, ValueError
            The time limit is no number of seconds, 0 or more.
        RuntimeError
            A pass is open on this thread.
        """
        seconds = seconds_of(time_limit)
        thread = self._thread()
        if thread.is_open():
            raise RuntimeError(f"plan: a pass of workspace {self.name!r} is open; plan between passes")
        courses = [course for course in thread.courses.values() if course.found is not None]
        for course in courses:
            course.improve(seconds / len(courses))
        thread.give_up_large_slab()
        return self.statistics()

    @_in_no_scope
    def statistics(self) -> WorkspaceStatistics:
        """Return the figures of all passes so far."""
        with _LOCK:
            threads = list(self._threads)
            slabs = bounds = 0
            for thread in threads:
                # A snapshot: the thread may meet another key meanwhile.
                courses = tuple(thread.courses.values())
                slabs += thread.slab_nbytes()
                bounds += max((course.bound_nbytes for course in courses), default=0)
            passes, hits, misses, escapes = self._totals.figures()
            return WorkspaceStatistics(
                passes=passes,
                slab_nbytes=slabs,
                bound_nbytes=bounds,
                hits=hits,
                misses=misses + self._served_by_pool,
                escapes=escapes,
                persistent_nbytes=self._persistent_nbytes(),
                reasons=dict(self._reasons),
                replans=tuple(self._replans),
            )

    @_in_no_scope
    def peak(self, key: Hashable = None) -> Peak:
        """Return the highest peak of the passes with a key, and what would lower it.

        The passes of all threads count. Without a key it is that of the key that was recorded last.

        Raises
        ------
        LookupError
            No pass with that key has ended.
        """
        wanted = _checked_key(key, "peak") if key is not None or self._last is None else self._last.key
        recording = self._highest.get(wanted)
        if recording is None:
            raise self._unknown(key)
        return self._peak_of(wanted, recording)

    @_in_no_scope
    def save(self, path: str | Path, key: Hashable = None) -> None:
        """Write what the slab holds, and where, to a file of comma-separated values.

        The columns are id, lower, upper, size and offset. Times and ids are numbers of births.
        ``python -m disposescope plan`` reads such a file.

        Raises
        ------
        LookupError
            No pass with that key has ended.
        OSError
            The file cannot be written.
        """
        if not isinstance(path, (str, Path)):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
            raise TypeError(f"save: path must be a str or a Path, not {path!r}")
        table, found = self._course(key, "save").table()
        write_table(Path(path), table, found)

    # What runs and reports call.

    @property
    def _passes(self) -> int:
        """How many passes have ended."""
        passes: int = self._totals.figures()[0]
        return passes

    def _thread(self) -> _Thread:
        thread: _Thread | None = getattr(self._here, "state", None)
        if thread is None:
            self._here.state = thread = _Thread()
            with _LOCK:
                self._threads.add(thread)
        return thread

    def forget(self) -> None:
        """Forget all that was recorded, planned, counted and refused; persistent arrays stay."""
        thread: _Thread | None = getattr(self._here, "state", None)
        if thread is not None and thread.open is not None:
            thread.open.forget()
        self._begin()

    def _new_course(self, thread: _Thread, key: Hashable) -> _Course:
        thread.courses[key] = course = _Course(key, self.verify)
        return course

    def _course(self, key: Hashable, verb: str) -> _Course:
        course = self._last
        if key is not None:
            course = self._thread().courses.get(_checked_key(key, verb))
            if course is None or course.observed is None:
                course = self._recorded.get(key)
        if course is None or course.observed is None:
            raise self._unknown(key)
        return course

    def _unknown(self, key: Hashable) -> LookupError:
        of = "" if key is None else f" with key {key!r}"
        return LookupError(f"workspace {self.name!r} has recorded no pass{of}")

    def _keep_highest(self, course: _Course) -> None:
        """Keep the recording of a course if none of its key, on any thread, has a higher peak."""
        recording = course.observed
        if recording is None:
            return
        _, nbytes = recording.peak()
        with _LOCK:
            before = self._highest.get(course.key)
            if before is None or nbytes >= before.peak()[1]:
                self._highest[course.key] = recording

    def _count(self, missed: Counter[str]) -> None:
        for reason, count in missed.items():
            known = reason in self._reasons or len(self._reasons) < _REASONS_AT_MOST
            self._reasons[reason if known else _OTHER_REASONS] += count

    def _persistent_nbytes(self) -> int:
        return sum(array.nbytes for array in self._persistent.values())

    def _peak_of(self, key: Hashable, recording: Recording) -> Peak:
        fixed = self._persistent_nbytes()
        time, nbytes = recording.peak()
        rows = list(living_rows(recording, time))
        if fixed:
            rows.append(LinePeak(PERSISTENT_ARRAYS, fixed, len(self._persistent)))
        return Peak(
            key=key,
            nbytes=nbytes + fixed,
            line=line_text(recording.births[time]) if recording.births else "<nothing>",
            living=tuple(sorted(rows, key=lambda row: (-row.nbytes, row.line))),
            advice=advise(recording, fixed),
        )

    def _ended(self, run: Run, escaped_slab: int, *, is_whole: bool, works: bool) -> WorkspaceError | None:
        """Count a pass that has ended, judge it, and plan where that is due.

        Returns what is wrong with it.
        """
        thread, course, served = run._thread, run._course, run._pass
        assert thread is not None
        assert course is not None
        fault = thread.slab.fault if self.verify and works and thread.slab is not None else None
        # No Counter where nothing is missed: to make one takes as long as all else here.
        missed = None
        pass_of_workspace(self.name, served.peak_nbytes)
        if run._pool_reason is not None:
            missed = Counter([run._pool_reason])
            with _LOCK:
                self._served_by_pool += 1
                self._count(missed)
        if self.limit is not None and course.key not in self._refusals:
            # Before another plan is made: births are read with the slots of their own plan.
            self._judge(course, served)
        is_due, notes = is_whole and works and course.wants_notes, course.notes(self.limit)
        noted = is_whole and works and notes
        is_highest = is_whole and served.peak_nbytes > _HIGHER * course.most_nbytes[notes]
        if is_whole and course.found is None:
            self._plan(course, served, noted)
        elif served.misses or escaped_slab or is_due or is_highest:
            is_observed = is_due or is_highest
            of_slab = self._learn(thread, course, served, is_whole=is_whole, noted=noted, is_observed=is_observed)
            missed = of_slab if missed is None else missed + of_slab
        if is_highest:
            course.most_nbytes[notes] = served.peak_nbytes
        if fault is not None:
            thread.give_up_slab()
            what, offset = fault
            return WorkspaceError(
                f"pass {self._passes} of workspace {self.name!r}: {what}, {offset} bytes from the beginning of the slab"
                f"{_born_there(course, offset)}"
            )
        if self.strict and missed:
            rows = [f"\n  {times(count)} {reason}" for reason, count in missed.items()]
            return WorkspaceError(
                f"pass {self._passes} of strict workspace {self.name!r}: "
                f"the plan missed {_births(missed.total())}:{''.join(rows)}"
            )
        return None

    @_in_no_scope
    def _learn(
        self, thread: _Thread, course: _Course, served: Any, *, is_whole: bool, noted: bool, is_observed: bool
    ) -> Counter[str]:
        """Give up a slab in which something lives on, and plan anew for what was not as planned.

        Once for a reason. Returns how many births were missed, by the reason.
        """
        births = course.read(served)
        if is_observed:
            course.observe(Recording(births), noted)
            self._keep_highest(course)
        missed, lines = _reasons_of(births, course)
        with _LOCK:
            self._count(missed)
        escaped = [birth for birth in births if birth.outcome is ServedBy.SERVED and birth.died is None]
        if escaped:
            thread.give_up_slab()
        if not is_whole:
            # What an exception keeps is planned again for the next pass.
            return missed
        course.exclude([birth.slot for birth in escaped if birth.slot is not None])
        for birth in escaped:
            line = str(line_of_birth(birth.places))
            lines[f"{line}: escaped"] = line
        fresh = [reason for reason in lines if reason not in course.reasons]
        if fresh and course.plans < _PLANS_AT_MOST:
            is_planned = self._plan_for(course, births, noted)
            # Not before: an interrupt leaves them for the next pass.
            course.reasons.update(fresh)
            if is_planned:
                thread.give_up_large_slab()
                with _LOCK:
                    self._replans.append(Replan(self._passes, course.key, fresh[0], lines[fresh[0]]))
        return missed

    @_in_no_scope
    def _plan(self, course: _Course, served: Any, noted: bool) -> None:
        """Plan for the first whole pass of a key."""
        self._plan_for(course, course.read(served), noted)

    def _plan_for(self, course: _Course, births: list[Birth], noted: bool) -> bool:
        """Plan for a pass. Return whether there was memory; if not, the plan before goes on."""
        try:
            course.learn(births, noted, _FIRST_LIMIT_S)
        except MemoryError:
            return False
        finally:
            if course.recording is not None:
                self._keep_highest(course)
                self._last = self._recorded[course.key] = course
        return True

    def _judge(self, course: _Course, served: Any) -> None:
        """Refuse further passes with a key whose peak exceeds the limit."""
        assert self.limit is not None
        if served.peak_nbytes + self._persistent_nbytes() > self.limit:
            self._refusals[course.key] = self._refusal(course, served, self.limit)

    @_in_no_scope
    def _refusal(self, course: _Course, served: Any, limit: int) -> str:
        course.observed = recording = Recording(course.read(served))
        self._keep_highest(course)
        self._last = self._recorded[course.key] = course
        peak = self._peak_of(course.key, recording)
        return f"workspace {self.name!r} has a limit of {bytes_text(limit)}, which a pass exceeds: {peak}"


def _checked_key(key: Hashable, verb: str) -> Hashable:
    try:
        hash(key)
    except TypeError as error:
        raise TypeError(f"{verb}: key must be hashable, not {key!r}: {error}") from None
    return key


def _checked_shape(shape: object) -> tuple[int, ...]:
    lengths: tuple[int, ...]
    try:
        lengths = (index(cast("SupportsIndex", shape)),)
    except TypeError:
        try:
            lengths = tuple(map(index, cast("Sequence[SupportsIndex]", shape)))
        except TypeError:
            raise TypeError(f"persistent: shape must be an int or a sequence of them, not {shape!r}") from None
    if any(length < 0 for length in lengths):
        raise ValueError(f"persistent: no length of a shape is negative, as in {shape!r}")
    return lengths


def _room_of(nbytes: int, verified: bool) -> int:
    """Return how many bytes a plan leaves for a block.

    Whole multiples of `_ALIGNMENT`, and guard bytes if verified.

    Large blocks have a little more, as they begin at different places in the pool: those of one
    expression would otherwise lie at one distance, a power of two, and contend for the same sets of
    the caches.
    """
    spread = _SPREAD if nbytes >= _SPREAD_FROM else 0
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT * verified + spread


def _running_code() -> set[int]:
    """Return the ids of the code that the frames of this thread run."""
    frame: FrameType | None = _getframe()
    found: set[int] = set()
    while frame is not None:
        found.add(id(frame.f_code))
        frame = frame.f_back
    return found


def _trace_of(places: tuple[Mark, ...], running: set[int]) -> tuple[Mark, ...]:
    """Return the places that a birth shares with the same birth of a later pass.

    Those inside the pass: what still runs at its end called the pass, and may do so from several
    lines. But the line that is told of the birth is always among them, also where code of a library
    runs between it and the pass.
    """
    inside = next((number for number, (code, _) in enumerate(places) if id(code) in running), len(places))
    return places[: max(inside, user_place(places) + 1)]


def _births(count: int) -> str:
    return "1 birth" if count == 1 else f"{count:,} births"


def _reasons_of(births: Iterable[Birth], course: _Course) -> tuple[Counter[str], dict[str, str]]:
    """Return how many births of a pass were missed, by the reason, and the line of each reason."""
    # Many births are missed for one reason, and its text takes longer than all else.
    alike: dict[tuple[object, ...], tuple[Birth, int]] = {}
    for birth in births:
        if birth.is_miss:
            places = tuple((id(code), instruction) for code, instruction in birth.places)
            key = (birth.outcome, birth.nbytes, birth.slot if birth.outcome is ServedBy.LARGER else None, places)
            first, count = alike.get(key, (birth, 0))
            alike[key] = first, count + 1
    missed: Counter[str] = Counter()
    lines: dict[str, str] = {}
    for birth, count in alike.values():
        reason = _reason(birth, course)
        missed[reason] += count
        lines[reason] = str(line_of_birth(birth.places))
    return missed, lines


def _reason(birth: Birth, course: _Course) -> str:
    line = line_of_birth(birth.places)
    if birth.outcome is ServedBy.LARGER and birth.slot is not None:
        return f"{line}: {birth.nbytes} > {course.slots[birth.slot].nbytes} bytes"
    if birth.outcome is ServedBy.IN_USE:
        return f"{line}: what is alive has its bytes of the slab"
    return f"{line}: {birth.nbytes} bytes that the plan does not have"


def _born_there(course: _Course, offset: int) -> str:
    lines = {str(line_of_birth(slot.places)) for slot in course.planned if slot.offset == offset}
    return f", where the plan has {', '.join(sorted(lines))}" if lines else ""


def _forget_in_child() -> None:
    """Begin anew in a forked child: slabs and threads are the parent's."""
    for workspace in list(_WORKSPACES):
        workspace.forget()


at_forks(in_child=_forget_in_child)
