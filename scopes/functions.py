"""The verbs as functions: they act on the current scope, or on a resource of any owner."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast, final

from .base.errors import DisposedError, ScopeNestingError, UnknownKindError
from .compiled import again, clear_process, count_open_birth, counts_of_process, thread_ledger
from .context import HOOKS, finish_releases, innermost_scope
from .identity import (
    DEAD_COMPOSITES,
    LIVE,
    Entry,
    catch_up,
    device_of_entry,
    disposed_error,
    entry_of,
    find_births_of,
    finding_births,
    is_owned,
    is_released,
    is_tracked,
    owner_of_entry,
    owning_entry_of,
    parts_of,
    raise_failures,
    settle,
    track_once,
    unit_of,
)
from .kinds import KINDS, Kind, advice_for, device_name, finder_of, kind_of, qualified_name
from .ownership import MemberPlan, absorb_members, plan_members
from .scope import DisposeScope, release_each
from .tree_walk import resources_in

__all__ = [
    "current_scope",
    "DeviceStatistics",
    "Statistics",
    "attach",
    "check_alive",
    "detach",
    "dispose",
    "is_disposed",
    "keep",
    "move_to_outer",
    "owner_of",
    "reset_statistics",
    "statistics",
]

T = TypeVar("T")


def move_to_outer(tree: T, *, compact: bool = False) -> T:
    """Give what the current scope owns in a tree to its outer scope.

    Returns `tree`: see `DisposeScope.move_to_outer`.

    Raises
    ------
    ScopeNestingError
        No scope is open in this context.
    """
    return _current("move_to_outer").move_to_outer(tree, compact=compact)


def attach(tree: T) -> T:
    """Let the current scope take over the resources in a tree.

    Returns `tree`: see `DisposeScope.attach`.

    Raises
    ------
    ScopeNestingError
        No scope is open in this context.
    """
    return _current("attach").attach(tree)


def keep(tree: T) -> T:
    """Take what the current scope owns in a tree out of every scope, for good.

    Returns `tree`: see `DisposeScope.keep`. `detach` is the same function.

    Raises
    ------
    ScopeNestingError
        No scope is open in this context.
    """
    return _current("keep").keep(tree)


detach = keep


def dispose(tree: object) -> None:
    """Release the resources in a tree now, whoever owns them.

    What has been disposed before is passed over.

    Parameters
    ----------
    tree : object
        A resource, or any nesting of containers. A member stands for its composite. Of a model (a
        ``torch.nn.Module``, a metric, an optimizer) only what a scope owns is released; its
        parameters and buffers are left.

    Raises
    ------
    UnknownKindError
        An object of unknown type in the tree hides a resource. Nothing has been released.
    ExceptionGroup
        Releases failed. All others were done.

    Examples
    --------
    >>> import disposescope as ds
    >>> batch = {"inputs": ds.zeros(3), "targets": [ds.ones(3)]}
    >>> ds.dispose(batch)
    >>> ds.is_disposed(batch["inputs"]), ds.is_disposed(batch["targets"][0])
    (True, True)
    """
    if DEAD_COMPOSITES:
        settle()
    planned: list[tuple[object, Kind, MemberPlan]] = []
    hides = finding_births(is_tracked)
    resources = resources_in(tree, hides, "the tree given to dispose()", is_owned=is_owned)
    if KINDS.finders:
        find_births_of(resources)
    for resource in resources:
        kind = kind_of(resource)
        if kind is not None and not is_released(resource, kind):
            known = not kind.is_anchored and entry_of(resource) is not None
            planned.append((resource, kind, [] if known else plan_members(resource, kind)))
    units: dict[Entry, None] = {}
    for resource, kind, plan in planned:
        entry, _ = track_once(resource, kind)
        if entry is None:
            # Another thread has released it meanwhile.
            continue
        if plan:
            absorb_members(entry, plan)
        units[unit_of(entry)] = None
    failures: list[BaseException] = []
    again(failures, release_each, list(units)[::-1], failures)
    if HOOKS.put_off:
        again(failures, finish_releases)
    if failures:
        raise_failures(failures, "dispose()", None)


def is_disposed(resource: object) -> bool:
    """Return whether a resource has been released.

    Raises
    ------
    UnknownKindError
        The object is no resource.
    """
    return is_released(resource, _kind("is_disposed", resource))


def check_alive(resource: object) -> None:
    """Raise `DisposedError` if a resource has been released: for the methods of your own classes.

    Parameters
    ----------
    resource : object
        A resource; one that was never attached is alive.

    Raises
    ------
    DisposedError
        A scope or `dispose` has released it.
    UnknownKindError
        The object is no resource.

    Examples
    --------
    >>> import disposescope as ds
    >>> class Session:
    ...     def dispose(self):
    ...         print("session closed")
    ...
    ...     def query(self):
    ...         ds.check_alive(self)
    ...         return 42
    >>> with ds.dispose_scope() as scope:
    ...     session = scope.attach(Session())
    ...     session.query()
    42
    session closed
    >>> session.query()
    Traceback (most recent call last):
    disposescope.DisposedError: Session has been disposed ...
    """
    kind = _kind("check_alive", resource)
    if is_released(resource, kind):
        raise disposed_error(resource, kind)


def current_scope() -> DisposeScope | None:
    """Return the innermost open scope of this context, or None.

    Each thread and each asyncio task has its own; a task inherits its creator's. A scope that was
    opened by a generator is current only while that generator runs.

    Examples
    --------
    >>> import disposescope as ds
    >>> ds.current_scope() is None
    True
    >>> with ds.dispose_scope() as scope:
    ...     ds.current_scope() is scope
    True
    """
    return cast("DisposeScope | None", innermost_scope())


def owner_of(resource: object) -> DisposeScope | None:
    """Return the scope that will dispose a resource, or None where it is unowned.

    For a member of a composite, this is the owner of the composite.

    For a plain array, the scope that owns its memory; None for memory that does not come from the
    arena.

    Raises
    ------
    UnknownKindError
        The object is no resource.
    """
    if DEAD_COMPOSITES:
        settle()
    if KINDS.finders and finder_of(resource) is not None:
        find_births_of((resource,))
    entry = owning_entry_of(resource)
    if entry is not None:
        return cast("DisposeScope | None", owner_of_entry(entry))
    if HOOKS.memory.is_plain(resource):
        return cast("DisposeScope | None", HOOKS.memory.owner(resource))
    _kind("owner_of", resource)
    return None


# Statistics: what was created, disposed and moved, and what lives now.

COUNTERS: Final = (
    "created_in_scope",
    "created_unscoped",
    "disposed_in_scope",
    "disposed_unscoped",
    "attached",
    "detached",
    "moved",
    "graphs_kept",
    "escaped",
)
"""The names of a thread's counters, in the order of ``enum counter`` in src/shared/types.h."""


@final
@dataclass(frozen=True, slots=True)
class DeviceStatistics:
    """What lives on one device: how many resources, and the bytes of their storages, each once."""

    live: int = 0
    live_nbytes: int = 0


@final
@dataclass(frozen=True, slots=True)
class Statistics:
    """What was created, disposed and moved since the last reset, and what lives now.

    A composite counts as one. Events count on the thread where they happen; `live` and
    `live_nbytes` count what was born on the thread (or first attached there). Plain arrays are not
    counted here.

    Attributes
    ----------
    created_in_scope, created_unscoped : int
        Resources born while a scope was current, and outside every scope.
    disposed_in_scope, disposed_unscoped : int
        Resources that were released or died by reference count, by whether a scope owned them then.
    attached, detached : int
        Unowned resources that got an owner; owned ones that lost theirs without being released.
    moved : int
        Changes of owner from one scope to another.
    graphs_kept : int
        Moves and detachments in which a resource left its scope with an autograd graph behind it.
    escaped : int
        Moves of what was held when the block of a scope with ``escapes="keep"`` ended.
    live : int
        Resources alive now: the size of an identity set, not a difference of counters.
    live_nbytes : int
        The bytes of their storages, each storage once.
    by_device : Mapping of str to DeviceStatistics
        The same two for each device, under its normalised name (``"cpu:0"``). Read-only.
    """

    created_in_scope: int = 0
    created_unscoped: int = 0
    disposed_in_scope: int = 0
    disposed_unscoped: int = 0
    attached: int = 0
    detached: int = 0
    moved: int = 0
    graphs_kept: int = 0
    escaped: int = 0
    live: int = 0
    live_nbytes: int = 0
    by_device: Mapping[str, DeviceStatistics] = field(default_factory=lambda: MappingProxyType({}), kw_only=True)

    def __reduce__(self) -> tuple[Any, ...]:
        counts = tuple(getattr(self, name) for name in (*COUNTERS, "live", "live_nbytes"))
        return statistics_of, (counts, dict(self.by_device))

    def __deepcopy__(self, _memo: object) -> Statistics:
        return self


def statistics_of(counts: tuple[int, ...], by_device: dict[str, DeviceStatistics]) -> Statistics:
    """Return `Statistics`, given the values of its fields in their order, and `by_device`."""
    return Statistics(*counts, by_device=MappingProxyType(by_device))


def statistics(*, process: bool = False) -> Statistics:
    """Return what this thread created, disposed and moved since the last reset, and what lives now.

    Parameters
    ----------
    process : bool, default False
        The sum over all threads of this process, those that have ended included.

    Returns
    -------
    Statistics
        A frozen snapshot. Taking it looks at every live resource once.

    Examples
    --------
    >>> import disposescope as ds
    >>> ds.reset_statistics()
    >>> with ds.dispose_scope():
    ...     kept = ds.zeros(1000) + 1
    ...     now = ds.statistics()
    >>> now.created_in_scope, now.disposed_in_scope, ds.statistics().disposed_in_scope
    (2, 1, 2)
    """
    if DEAD_COMPOSITES or KINDS.finders:
        catch_up()
    own = thread_ledger()
    count = 0
    everywhere: dict[Hashable, int] = {}
    counts: defaultdict[str, int] = defaultdict(int)
    storages: defaultdict[str, dict[Hashable, int]] = defaultdict(dict)
    for entry in list(LIVE.values()):
        resource = entry()
        if resource is None or entry.unit is not None or not (process or entry.home is own):
            continue
        count_open_birth(entry)
        found: list[tuple[str, dict[Hashable, int]]] = []
        try:
            device = device_of_entry(entry)
            for part, resource in parts_of(entry):
                apart = part.unit is not None and part.unit.kind.host_members
                place = device_name(part.kind.device(resource)) if apart else device
                found.append((place, dict(part.kind.storages(resource))))
        except DisposedError:
            # Another thread has disposed it since the list of entries was made.
            continue
        count += 1
        counts[device] += 1
        for place, owned in found:
            storages[place].update(owned)
            everywhere.update(owned)
    figures = counts_of_process() if process else own.counts()
    devices = sorted(set(counts).union(storages))
    by_device = {name: DeviceStatistics(counts[name], sum(storages[name].values())) for name in devices}
    return statistics_of((*figures, count, sum(everywhere.values())), by_device)


def reset_statistics(*, process: bool = False) -> None:
    """Set the counters of this thread (or of the process) to zero. What lives stays live."""
    own = thread_ledger()
    for entry in list(LIVE.values()):
        # Its birth was before the reset.
        if entry.unit is None and (process or entry.home is own):
            count_open_birth(entry)
    if process:
        clear_process()
    else:
        own.clear()


def _kind(verb: str, resource: object) -> Kind:
    kind = kind_of(resource)
    if kind is None:
        name = qualified_name(type(resource))
        raise UnknownKindError(
            f"{verb}: expected a resource, not an instance of {name}; {advice_for(type(resource))}",
            type_name=name,
        )
    return kind


def _current(verb: str) -> DisposeScope:
    scope = current_scope()
    if scope is None:
        raise ScopeNestingError(f"{verb}: no scope is open in this context; open one with dispose_scope() first")
    return scope
