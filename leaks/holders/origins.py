"""Where a chain of holders begins, and what is known of a chain beside its text.

A report has only texts. What the rest of this package asks about a holder is said here where the
chain is found, so that nobody has to read it out of a text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Self, final

from .references import hide_types

__all__ = [
    "SEVERAL_KEYS",
    "Chain",
    "Holder",
    "Origin",
    "OriginKind",
    "chain_of",
    "reworded",
]

SEVERAL_KEYS: Final = "[...]"
"""What stands in a chain for keys by which several chains differ."""

OriginKind = Literal[
    "module",
    "frame",
    "exception in flight",
    "last exception",
    "signal handler",
    "finalizers",
    "task",
    "context of a task",
    "context",
    "compiled code",
    "cycle",
    "scope",
]
"""What a chain begins at.

* ``"module"``, ``"frame"``: a variable of a module, or of a running function
* ``"exception in flight"``, ``"last exception"``: one that is handled, or one of `sys`
* ``"finalizers"``: the functions given to `weakref.finalize`
* ``"task"``: a task of an event loop, or a variable of a coroutine that waits in it
* ``"context of a task"``, ``"context"``: a context variable of a task, or of no task
* ``"compiled code"``: an object that no variable leads to
* ``"cycle"``, ``"scope"``: nothing else than a cycle or the scope of the resource holds it
"""


class Origin(NamedTuple):
    """Where a chain of holders begins.

    Attributes
    ----------
    text : str
        How reports show it.
    kind : str
        What it is.
    owner : str
        The name of the module or function, for a variable of one.
    variable : str
        The name of the variable.
    thread : str
        What the text says of the thread of a running function; empty for the main thread.
    is_of_coroutine : bool
        Whether the running function is a coroutine.
    """

    text: str
    kind: OriginKind
    owner: str = ""
    variable: str = ""
    thread: str = ""
    is_of_coroutine: bool = False

    def is_like(self, other: Origin) -> bool:
        """Return whether two origins are the same, whichever line the function has reached."""
        return self == other or (self.kind == "frame" and self._replace(text=other.text) == other)


@final
@dataclass(frozen=True, slots=True)
class Chain:
    """What is known of a chain of holders, as far as reports show it.

    Attributes
    ----------
    origin : Origin
        Where it begins.
    has_items : bool
        Whether a step of it is that to an item, by an index or a key.
    is_of_a_thread : bool
        Whether it leads through a `threading.local`.
    is_of_a_key : bool
        Whether it leads to a value in a `weakref.WeakKeyDictionary`.
    is_in_traceback : bool
        Whether it leads from an exception into its traceback.
    ends_at_self_of_init : bool
        Whether it ends at the ``self`` of an ``__init__``: an object that is being made, which its
        caller will hold next.
    """

    origin: Origin
    has_items: bool = False
    is_of_a_thread: bool = False
    is_of_a_key: bool = False
    is_in_traceback: bool = False
    ends_at_self_of_init: bool = False


@final
class Holder(str):
    """The text of a chain of holders in a report that was made in this process.

    Attributes
    ----------
    chain : Chain or None
        What is known of the chain.
    """

    __slots__ = ("chain",)

    chain: Chain | None

    def __new__(cls, text: str, chain: Chain | None = None) -> Self:
        """Return a text with what is known of its chain."""
        holder = super().__new__(cls, text)
        holder.chain = chain
        return holder

    def goes_on_from(self, other: str) -> bool:
        """Return whether the chain begins with another one, whose text may stand for several."""
        mine, its = self.chain, chain_of(other)
        if mine is None or its is None or not mine.origin.is_like(its.origin):
            return False
        start, _, _ = other[len(its.origin.text) :].partition(SEVERAL_KEYS)
        return self.startswith(start, len(mine.origin.text))


hide_types(Chain, Holder, Origin)


def chain_of(holder: str) -> Chain | None:
    """Return what is known of a chain; None for the text of a holder that was not found."""
    return holder.chain if isinstance(holder, Holder) else None


def reworded(holder: str, text: str) -> str:
    """Return another text for a holder, with what is known of its chain."""
    return Holder(text, chain_of(holder))
