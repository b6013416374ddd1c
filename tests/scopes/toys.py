"""Small kinds of resource for the tests: a toy, its composite, and ones that fail."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import disposescope as ds
from disposescope.scopes.context import HOOKS
from disposescope.scopes.identity import DEAD, LIVE
from disposescope.scopes.kinds import Kind, add_kind
from disposescope.scopes.ownership import born, born_together

RELEASED: list[object] = []
"""The values of released toys, in order; tests that look at it clear it first."""


class Toy:
    """A resource: `value` is None once it is released, `releases` says how often that happened."""

    __slots__ = ("__weakref__", "device", "nbytes", "releases", "value")

    def __init__(self, value: object = 0, *, device: str = "cpu", nbytes: int = 8) -> None:
        self.value = value
        self.device = device
        self.nbytes = nbytes
        self.releases = 0
        born(self, TOY)

    def __repr__(self) -> str:
        return f"Toy({self.value!r})"


class ToyKind(Kind):
    cls = Toy
    name = "Toy"

    def release(self, toy):
        RELEASED.append(toy.value)
        toy.releases += 1
        toy.value = None

    def storages(self, toy):
        return ((id(toy), toy.nbytes),)

    def device(self, toy):
        return toy.device

    def describe(self, toy):
        return f"Toy({toy.value!r})"


TOY = ToyKind()
add_kind(TOY)


class Faulty:
    """A resource whose release runs the function that it was given."""

    __slots__ = ("__weakref__", "name", "on_release", "releases")

    def __init__(self, on_release: Callable[[], object], name: str = "faulty") -> None:
        self.on_release = on_release
        self.name = name
        self.releases = 0
        born(self, FAULTY)


class FaultyKind(Kind):
    cls = Faulty
    name = "Faulty"

    def release(self, faulty):
        faulty.releases += 1
        faulty.on_release()

    def describe(self, faulty):
        return f"Faulty {faulty.name}"


FAULTY = FaultyKind()
add_kind(FAULTY)


def fails(error: BaseException) -> Faulty:
    def on_release() -> None:
        raise error

    return Faulty(on_release, str(error))


class Pair:
    """A composite of what it is given, by name; not born of its own accord: it is attached."""

    def __init__(self, *members: object) -> None:
        self.members = members


ds.register_kind(Pair, members=lambda pair: {f"member{index}": member for index, member in enumerate(pair.members)})


class Packed:
    """A composite that is born as one."""

    def __init__(self, *members: object) -> None:
        self.members = members
        born_together(self, PACKED)


class PackedKind(Kind):
    cls = Packed
    name = "Packed"

    def members(self, packed):
        return packed.members


PACKED = PackedKind()
add_kind(PACKED)


class Bundle(tuple):
    """A composite that cannot be weakly referenced."""

    __slots__ = ()


ds.register_kind(Bundle, members=lambda bundle: list(bundle))


class Disposable:
    """A user's object that only has ``dispose()``."""

    def __init__(self) -> None:
        self.disposals = 0

    def dispose(self) -> None:
        self.disposals += 1


class Unknown:
    """A type that nobody taught the library."""

    def __init__(self, *hidden: object) -> None:
        self.hidden = hidden


def counts(*, process: bool = False) -> dict[str, int]:
    """The statistics that are not zero, without bytes and devices."""
    now = ds.statistics(process=process)
    names = ds.Statistics.__dataclass_fields__.keys() - {"live_nbytes", "by_device"}
    return {name: getattr(now, name) for name in names if getattr(now, name)}


def owned_by(scope: ds.DisposeScope, *resources: object) -> bool:
    """Whether each of them, and nothing else, is owned by the scope."""
    live = scope.live
    return len(scope) == len(live) == len(resources) and all(
        any(resource is other for other in live) and resource in scope and ds.owner_of(resource) is scope
        for resource in resources
    )


def tables_are_sound() -> bool:
    """Whether every entry is under its key and in its owner's list, each once."""
    gc.collect()
    for table in (LIVE, DEAD):
        for key, entry in list(table.items()):
            resource = entry()
            if resource is not None and id(resource) != key:
                return False
    for entry in list(LIVE.values()):
        if entry.owner is not None and (entry.unit is not None or entry not in entry.owner._entries):
            return False
    return True


class Recorder:
    """A listener that writes down what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def born(self, entry) -> None:
        self.events.append(("born", entry.kind.name, entry.owner))

    def moved(self, entry, source, target) -> None:
        self.events.append(("moved", entry.kind.name, source, target))

    def disposed(self, entry, owner) -> None:
        self.events.append(("disposed", entry.kind.name, owner))

    def died(self, entry) -> None:
        self.events.append(("died", entry.kind.name))

    def opened(self, scope) -> None:
        self.events.append(("opened", scope))

    def closed(self, scope) -> None:
        self.events.append(("closed", scope))

    def stepped(self) -> None:
        self.events.append(("stepped",))

    def line_of_birth(self, entry) -> str:
        return ""

    def story(self, entry) -> str:
        return ""


@contextmanager
def recorded() -> Iterator[Recorder]:
    recorder = Recorder()
    HOOKS.listeners.append(recorder)
    try:
        yield recorder
    finally:
        HOOKS.listeners.remove(recorder)


@contextmanager
def no_cyclic_garbage() -> Iterator[None]:
    """What the block makes goes by reference count: nothing is left for the collector."""
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [f"{type(thing).__qualname__}: {thing!r:.200}" for thing in gc.garbage]
        gc.garbage.clear()
    finally:
        gc.set_debug(0)
        gc.enable()
        gc.garbage.clear()
    assert not left, "\n".join(left[:20])
