"""What happens to the history of what leaves a scope: the ``graph`` option.

A tensor that is moved out may carry an autograd graph, and with it the memory of everything that the graph saved. This
floor knows no graph: a kind whose instances can carry one says so with a `Graphs` of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args

if TYPE_CHECKING:
    from ._entry import Entry

__all__ = ["Cut", "GraphOption", "Graphs", "check_graph_option", "let_graphs_out"]

GraphOption = Literal["keep", "detach", "error"]

_OPTIONS: Final[tuple[str, ...]] = get_args(GraphOption)


class Cut(Protocol):
    """A graph that is about to be cut off: until all are, each can be put back."""

    def finish(self) -> None:
        """Let the graph go. Does not fail."""

    def undo(self) -> None:
        """Put the graph back. Does not fail."""


class Graphs(Protocol):
    """What a kind tells of the graphs behind its instances. Called for live instances only."""

    def carried_by(self, resource: Any, /) -> bool:
        """Whether there is a graph behind an instance. On the path of every move: cheap."""
        ...

    def refusal(self, entry: Entry, leaving: str, /) -> Exception:
        """The error that says what an instance with a graph would pin; `leaving` names the scope and what was asked."""
        ...

    def cut(self, resource: Any, /) -> Cut:
        """Take the graph from an instance, which keeps identity, values and storage; or raise, having done nothing."""
        ...


def check_graph_option(option: object) -> None:
    """Raise `ValueError` where an option is none of the three."""
    if option not in _OPTIONS:
        raise ValueError(f'dispose_scope: graph must be "keep", "detach" or "error", not {option!r}')


def let_graphs_out(entries: list[Entry], option: str, leaving: str) -> int:
    """Do to the graphs of what leaves a scope as the scope's option says.

    Parameters
    ----------
    entries : list of Entry
        What leaves. The members of a composite are looked at one by one.
    option : str
        A `GraphOption`.
    leaving : str
        The scope and what was asked of it, for the message.

    Returns
    -------
    int
        How many of the entries leave with a graph.

    Raises
    ------
    GraphRetainedError
        The option is ``"error"`` and there is a graph, or it is ``"detach"`` and one cannot be taken away. Nothing has
        changed then.
    """
    kept = 0
    cuts: list[Cut] = []
    try:
        for entry in entries:
            carrying = False
            for part in _with_members(entry) if entry.members else (entry,):
                graphs = part.kind.graphs
                resource = None if graphs is None else part()
                if graphs is None or resource is None or not graphs.carried_by(resource):
                    continue
                if option == "error":
                    raise graphs.refusal(part, leaving)
                if option == "detach":
                    cuts.append(graphs.cut(resource))
                carrying = True
            kept += carrying and option == "keep"
    except BaseException:
        for cut in reversed(cuts):
            cut.undo()
        raise
    for cut in cuts:
        cut.finish()
    return kept


def _with_members(entry: Entry) -> list[Entry]:
    found = [entry]
    for part in found:
        found.extend(part.members)
    return found
