"""Who is called at births, moves, disposals, and when scopes are entered and left.

Free where nobody listens: the compiled paths look at lists that are empty then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, final

if TYPE_CHECKING:
    from .identity import Entry
    from .scope import DisposeScope

__all__ = [
    "HOOKS",
    "LISTENERS",
    "Hooks",
    "Listener",
    "add_listener",
    "after_releases",
    "finish_releases",
    "remove_listener",
]


class Listener(Protocol):
    """What a listener implements.

    Calls come in the thread of the event, before the verb returns; births of PyTorch's tensors
    later, and on any thread: when the next one is made or a scope ends.

    A listener must not raise, must not create or dispose resources, and must not keep a resource
    alive: an entry is a weak reference and may be kept.
    """

    def born(self, entry: Entry) -> None:
        """A resource was created (`entry.owner` tells by whom it is owned), or first met by ``attach``."""

    def moved(self, entry: Entry, source: DisposeScope | None, target: DisposeScope | None) -> None:
        """The owner of a resource changed; None is nobody."""

    def disposed(self, entry: Entry, owner: DisposeScope | None) -> None:
        """A resource was released while it was still referenced by at least its caller."""

    def died(self, entry: Entry) -> None:
        """The last reference of a resource, live or disposed, is gone."""

    def opened(self, scope: DisposeScope) -> None:
        """A scope was entered."""

    def closed(self, scope: DisposeScope) -> None:
        """A scope was closed, after it released what it owned."""

    def story(self, entry: Entry) -> str:
        """Birth and disposal site of a resource for an error message; empty where unknown."""
        ...


LISTENERS: Final[list[Listener]] = []
"""The listeners, in the order in which they were added. To be read only: see `add_listener`."""


def add_listener(listener: Listener) -> None:
    """Call a listener at every event from now on."""
    LISTENERS.append(listener)


def remove_listener(listener: Listener) -> None:
    """Call a listener no more, where it was added."""
    for place, each in enumerate(LISTENERS):
        if each is listener:
            del LISTENERS[place]
            return


@final
class Hooks:
    """What else is called, in the order in which it was added. The one instance is `HOOKS`.

    Attributes
    ----------
    entered : list of callable
        Called when a scope has been entered, in its thread.
    left : list of callable
        Called once for each scope that was entered, when it is left or closed, before it releases
        what it owns.
    array_moved_out : list of callable
        Called with each plain array that is moved out of a scope, whoever has its memory. They do
        not raise.
    put_off : list of callable
        What releases have put off until all that belong together are done; called once: see
        `after_releases`.
    """

    __slots__ = ("array_moved_out", "entered", "left", "put_off")

    def __init__(self) -> None:
        self.entered: list[Callable[[DisposeScope], object]] = []
        self.left: list[Callable[[DisposeScope], object]] = []
        self.array_moved_out: list[Callable[[object], object]] = []
        self.put_off: list[Callable[[], object]] = []


HOOKS: Final = Hooks()


def after_releases(function: Callable[[], object]) -> None:
    """Call a function once, when all releases that belong together are done."""
    HOOKS.put_off.append(function)


def finish_releases() -> None:
    """Do what releases have put off."""
    put_off = HOOKS.put_off
    while put_off:
        # Taken out when it is done: after an interrupt it is done again.
        put_off[-1]()
        del put_off[-1:]
