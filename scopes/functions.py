"""The verbs as functions: they act on the current scope, or on a resource wherever it is owned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from typing import TypeVar

from .composites import Plan, absorb_members, plan_members
from .context import current_scope
from .errors import DisposedError, ScopeNestingError, UnknownKindError
from .identity import (
    DEAD_COMPOSITES,
    LIVE,
    UNSEEN,
    Entry,
    catch_up,
    device_of_entry,
    entry_of,
    find_births_of,
    finding_births,
    is_released,
    is_tracked,
    owner_of_entry,
    parts_of,
    raise_failures,
    settle,
    standing_of,
    track_once,
    unit_of,
)
from .kinds import Kind, device_name, kind_of, qualified_name
from .listeners import HOOKS, finish_releases
from .plain_memory import MEMORY
from .scope import DisposeScope, again, release_each
from .statistics import LOCAL, DeviceStatistics, Statistics, clear_process, counts_of_process, statistics_of
from .tree_walk import resources_in

__all__ = [
    "attach",
    "detach",
    "dispose",
    "is_disposed",
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


def detach(tree: T) -> T:
    """Let the current scope give up what it owns in a tree.

    Returns `tree`: see `DisposeScope.detach`.

    Raises
    ------
    ScopeNestingError
        No scope is open in this context.
    """
    return _current("detach").detach(tree)


def dispose(tree: object) -> None:
    """Release the resources in a tree now, whoever owns them.

    What has been disposed before is passed over.

    Parameters
    ----------
    tree : object
        A resource, or any nesting of containers. A member stands for its composite.

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
    planned: list[tuple[object, Kind, Plan]] = []
    resources = resources_in(tree, finding_births(is_tracked), "the tree given to dispose()")
    if UNSEEN:
        find_births_of(resources)
    for resource in resources:
        kind = kind_of(resource)
        if kind is not None and not is_released(resource, kind):
            known = kind.anchor is None and entry_of(resource) is not None
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
    """Whether a resource has been released.

    Raises
    ------
    UnknownKindError
        The object is no resource.
    """
    return is_released(resource, _kind("is_disposed", resource))


def owner_of(resource: object) -> DisposeScope | None:
    """The scope that will dispose a resource, or None where it is unowned; for a member, the owner of its composite.

    For a plain array, the scope that owns its memory; None for memory that does not come from the
    arena.

    Raises
    ------
    UnknownKindError
        The object is no resource.
    """
    if DEAD_COMPOSITES:
        settle()
    if type(resource) in UNSEEN:
        find_births_of((resource,))
    entry = standing_of(resource)
    if entry is not None:
        return owner_of_entry(entry)
    if MEMORY and MEMORY[0].is_plain(resource):
        return MEMORY[0].owner(resource)
    _kind("owner_of", resource)
    return None


def statistics(*, process: bool = False) -> Statistics:
    """What was created, disposed and moved on this thread since the last reset, and what lives now.

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
    if DEAD_COMPOSITES or UNSEEN:
        catch_up()
    own = LOCAL.ledger
    figures = counts_of_process() if process else own.counts()
    count = 0
    everywhere: dict[Hashable, int] = {}
    counts: defaultdict[str, int] = defaultdict(int)
    storages: defaultdict[str, dict[Hashable, int]] = defaultdict(dict)
    for entry in list(LIVE.values()):
        resource = entry()
        if resource is None or entry.unit is not None or not (process or entry.home is own):
            continue
        found: list[tuple[str, dict[Hashable, int]]] = []
        try:
            device = device_of_entry(entry)
            for part, resource in parts_of(entry):
                apart = part.unit is not None and part.unit.kind.host_members
                place = device_name(part.kind.device(resource)) if apart else device
                found.append((place, dict(part.kind.storages(resource))))
        except DisposedError:
            # By another thread, since the list was made.
            continue
        count += 1
        counts[device] += 1
        for place, owned in found:
            storages[place].update(owned)
            everywhere.update(owned)
    devices = sorted(set(counts).union(storages))
    by_device = {name: DeviceStatistics(counts[name], sum(storages[name].values())) for name in devices}
    return statistics_of((*figures, count, sum(everywhere.values())), by_device)


def reset_statistics(*, process: bool = False) -> None:
    """Set the counters of this thread (or of the process) to zero. What lives stays live."""
    if process:
        clear_process()
    else:
        LOCAL.ledger.clear()


def _kind(verb: str, resource: object) -> Kind:
    kind = kind_of(resource)
    if kind is None:
        name = qualified_name(type(resource))
        raise UnknownKindError(
            f"{verb}: expected a resource, not an instance of {name}; disposescope.register_kind() makes its type one",
            type_name=name,
        )
    return kind


def _current(verb: str) -> DisposeScope:
    scope = current_scope()
    if scope is None:
        raise ScopeNestingError(f"{verb}: no scope is open in this context; open one with dispose_scope() first")
    return scope
