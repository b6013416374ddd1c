"""Decide which kind of leak something is and how certain that is, and explain it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, final

from ..holders.search import POSSIBLY_PINNED_TIMES, REPEATED

if TYPE_CHECKING:
    from ...scopes.framework import Escape
    from ..holders.holders import Reason
    from ..holders.search import Cycle
    from ..report.leaks import LeakKind, Sureness, Trend
    from ..report.records import Record

__all__ = [
    "EVALUATIONS",
    "WORTH_NBYTES",
    "Facts",
    "Judgement",
    "judgement_on",
    "outlived",
]

EVALUATIONS: Final = 16
"""The graphs of so many evaluations of a model in eval mode are reported."""
WORTH_NBYTES: Final = 64_000
"""Fewer bytes are no leak unless they grow: docs/limits.md says 64 kB in all."""
_WORTH_PER_PASS: Final = 512
"""Growth by fewer bytes a pass is that of a list of numbers: docs/limits.md says 512 bytes."""
_PINNED_TIMES: Final = 10
"""Views that keep at least so many times the bytes that they use are likely leaks."""
_GRAPH_PASSES: Final = 8
"""A graph over so many steps of an optimizer is not that of one step."""
_MODELS: Final = 8
"""From so many models on, one made after the other, it is said that they stay."""
_MANY_MODELS: Final = 16
"""More models than a cross-validation or an ensemble keeps on purpose."""


@final
@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a group: resources, or memory, of one line that are there for one reason.

    Attributes
    ----------
    oldest : Record
        The oldest of the group.
    count, nbytes : int
        How many the group has, and the bytes of their storages.
    reason : str
        What holds the group.
    escape : {"due", "disposed"} or None
        How the group has escaped, if it is memory: see `Escape`.
    is_left : bool
        Whether the group is disposed, or has escaped, and only left-over variables refer to it.
    pinned_times : float
        How many times the bytes that views use they keep alive; 1 where there are no views, or
        other objects use the rest.
    is_replaced : bool
        Whether the group has only one of many that the line made: such as the last one of a loop.
    trend : Trend or None
        How the line grows.
    trend_is_known : bool
        Whether there were enough passes to see growth: without a trend the line does not grow.
    is_bounded : bool
        Whether these were passes of the scopes that the group was born in.
    generations : int
        How many different numbers of scopes had been closed when members of the group were born.
    cycle : Cycle or None
        The reference cycle that holds the group.
    program_died : bool
        Whether nothing but the exception that ended the program, or one that is being handled now,
        holds the group.
    graph_passes : int
        Over how many passes of a loop the graph of one of the group reaches.
    is_of_evaluation : bool
        Whether the graph that holds the group is that of a model in eval mode.
    evaluations : int
        How many evaluations of a model in eval mode the graphs that hold the group are of.
    is_model : bool
        Whether the group is of models, each with everything that belongs to it.
    is_added : bool
        Whether the models were added to another model after that was made.
    is_apart : bool
        Whether the program did other work between making one model and the next.
    nodes_nbytes : int
        About how many bytes the nodes of the group's graphs take.
    is_in_traceback : bool
        Whether an exception has the group in the frames of its traceback, and not in its arguments.
    is_collected : bool
        Whether the garbage collector has freed most of what the line made, and will free the rest.
    remedy : str
        What ends the holder, where ``known.toml`` has it; ``""`` where not.
    """

    oldest: Record
    count: int
    nbytes: int
    reason: Reason
    escape: Escape | None
    is_left: bool
    pinned_times: float
    is_replaced: bool
    trend: Trend | None
    trend_is_known: bool
    is_bounded: bool
    generations: int
    cycle: Cycle | None
    program_died: bool
    graph_passes: int
    is_of_evaluation: bool
    evaluations: int = 0
    is_model: bool = False
    is_added: bool = False
    is_apart: bool = False
    nodes_nbytes: int = 0
    is_in_traceback: bool = True
    is_collected: bool = False
    remedy: str = ""

    @property
    def all_nbytes(self) -> int:
        """Return the bytes of the storages, and of the nodes of graphs, of the group."""
        return self.nbytes + self.nodes_nbytes


@final
@dataclass(frozen=True, slots=True)
class Judgement:
    """The kind of leak that some facts show.

    Attributes
    ----------
    kind, sure : str
        See `Leak`.
    what : str
        What happens.
    remedy : str
        What to do about it; ``""`` where nothing is to be done.
    is_leak : bool
        Whether it is a leak also at the end of a program, where no resource is a leak merely
        because a variable leads to it.
    """

    kind: LeakKind
    sure: Sureness
    what: str
    remedy: str = ""
    is_leak: bool = True

    @property
    def explanation(self) -> str:
        """Return what happens and what to do, in a sentence."""
        return f"{self.what}: {self.remedy}." if self.remedy else f"{self.what}."


def judgement_on(facts: Facts) -> Judgement:
    """Return the verdict on some facts; of the kind ``alive`` without a sign of a leak."""
    if facts.oldest.state == "disposed":
        return _disposed(facts)
    if facts.reason == "cycle":
        return _in_a_cycle(facts)
    if facts.reason == "exception":
        return _in_an_exception(facts)
    if facts.reason == "graph":
        return _in_a_graph(facts)
    if facts.is_model and facts.reason in ("held", "suspended"):
        return _added(facts) if facts.is_added else _model(facts)
    if facts.escape == "disposed" or (facts.escape is not None and facts.reason in ("held", "suspended")):
        return _escaped(facts)
    if facts.graph_passes >= _GRAPH_PASSES:
        return Judgement(
            "graph",
            "certain",
            f"Its graph reaches over {facts.graph_passes} steps of an optimizer and grows with each",
            "detach() what goes on to the next step, or compute it under torch.no_grad(); of a loss add up loss.item()",
        )
    if facts.pinned_times >= _PINNED_TIMES and facts.nbytes >= WORTH_NBYTES and not facts.is_replaced:
        return _pinned(facts, "likely")
    if facts.trend is not None and _is_worth_it(facts, facts.trend):
        trend = facts.trend
        if trend.replaced:
            before = "the one before" if trend.replaced == 1 else f"one of {trend.replaced}"
            return Judgement(
                "growth",
                "possible",
                "It is resized again and again"
                if trend.passes == 1
                else f"Each of {trend.passes:,} that this line made takes the place of {before}, and has more",
                facts.remedy or "bound what is joined to it, or keep only the last part of it",
            )
        if trend.over == "births":
            return Judgement(
                "growth",
                "possible",
                f"{facts.count:,} of {trend.passes:,} that this line made are alive, and it made more until the end",
                "mark the steps (detector.mark(), or a dispose_scope) to know whether it grows with each; if it does, "
                + (facts.remedy or "clear or bound the holder"),
            )
        return Judgement(
            "growth",
            "likely",
            f"More of them stay from pass to pass, {trend.count_per_pass:.3g} each over {trend.passes} passes, as the "
            "holder collects them",
            facts.remedy or _less_of(facts),
        )
    if facts.reason in ("held", "suspended") and _is_repeated(facts) and not facts.trend_is_known:
        return Judgement(
            "growth",
            "possible",
            f"{facts.count} of them were made in different passes and all are held; if the holder goes on to collect "
            "them, it grows without end",
            facts.remedy or "clear the holder, or bound it",
        )
    if facts.pinned_times > POSSIBLY_PINNED_TIMES:
        return _pinned(facts, "possible")
    if facts.reason == "suspended":
        return Judgement(
            "suspended",
            "possible",
            "Only a suspended generator or coroutine holds it",
            "close it, or let it run to its end",
            is_leak=False,
        )
    return Judgement("alive", "possible", "It is alive, and the holder says who references it", is_leak=False)


def _less_of(facts: Facts) -> str:
    """Return the remedy for a holder that collects tensors."""
    if facts.nodes_nbytes > facts.nbytes:
        return (
            "keep item() or detach() of each, or, if a later backward() needs them, clear the holder after it: "
            "backward() frees what a graph saved, and not its nodes"
        )
    return "clear the holder, bound it, or keep less (a number instead of a tensor)"


def _model(facts: Facts) -> Judgement:
    todo = facts.remedy or "let the holders of those that are no longer used go"
    todo = f"{todo}; disposescope.why_alive(model) lists what holds it"
    trend = facts.trend if facts.trend is not None and _is_worth_it(facts, facts.trend) else None
    if trend is not None and trend.over == "passes":
        what = f"More models stay from pass to pass: {trend.count_per_pass:.3g} each over {trend.passes} passes"
        return Judgement("model", "certain" if _are_many(facts) else "possible", what, todo)
    if trend is not None and trend.replaced:
        what = f"Each of {trend.passes:,} that this line made has the one before in it, and takes its place"
        return Judgement("model", "possible", what, "keep the model that was there first, and wrap that")
    if _are_several(facts):
        what = f"{facts.count} models were made one after another, and none has gone"
        return Judgement("model", "likely" if _are_many(facts) else "possible", what, todo)
    if trend is not None:
        what = (
            f"{facts.count:,} of {trend.passes:,} models of this line are alive, made from the beginning of the run on"
        )
        return Judgement("model", "possible", what, todo)
    return Judgement("alive", "possible", "The model is alive: the holder says who references it", is_leak=False)


def _added(facts: Facts) -> Judgement:
    what = f"The model that holds them grows: {facts.count:,} modules were added to it after it was made"
    todo = "take out those that are no longer used, or make them once"
    trend = facts.trend if facts.trend is not None and _is_worth_it(facts, facts.trend) else None
    if trend is not None and trend.over == "passes":
        return Judgement("growth", "likely" if _are_many(facts) else "possible", what, todo)
    if _are_several(facts):
        what = f"{what}, with other work in between"
        return Judgement("growth", "likely" if _are_many(facts) else "possible", what, todo)
    if trend is not None:
        return Judgement("growth", "possible", what, todo)
    return Judgement("alive", "possible", "It is a part of a model", is_leak=False)


def _are_several(facts: Facts) -> bool:
    """Return whether several models were made with other work in between."""
    return facts.count >= _MODELS and facts.is_apart and facts.nbytes >= WORTH_NBYTES


def _are_many(facts: Facts) -> bool:
    """Return whether there are more models than a cross-validation or ensemble keeps on purpose."""
    return facts.count >= _MANY_MODELS


def _disposed(facts: Facts) -> Judgement:
    if facts.is_left:
        return Judgement("escaped", "possible", "Disposed, and only a variable that was left over still names it")
    return Judgement(
        "escaped",
        "certain",
        "Its scope has ended, the holder still references it, and the next use raises DisposedError",
        "let the holder go, or move it out of its scope",
    )


def _escaped(facts: Facts) -> Judgement:
    due = facts.escape == "due"
    what = "Its scope has ended, and it was not moved out" if due else "Its tensor was disposed, and this is an alias"
    if facts.is_left:
        return Judgement("escaped", "possible", f"{what}; only a variable that was left over still names it")
    remedy = (
        f"{facts.remedy or 'let the holder go'}, or say that it is meant with move_to_outer"
        if due
        else "keep a copy, or move it out"
    )
    if facts.trend is not None and _is_worth_it(facts, facts.trend):
        return Judgement(
            "escaped",
            "certain",
            f"{what}, and {facts.trend.count_per_pass:.3g} more stay with each pass, over {facts.trend.passes}",
            remedy,
        )
    if facts.trend_is_known and facts.is_bounded:
        return Judgement("escaped", "possible", f"{what}, but no more of them come (a cache)", remedy, is_leak=False)
    sure: Sureness = "likely" if _is_repeated(facts) else "possible"
    return Judgement("escaped", sure, f"{what}, so that its memory stays with the holder", remedy)


def _in_a_cycle(facts: Facts) -> Judgement:
    times = 1 if facts.cycle is None else facts.cycle.times
    # Not for a model: one in a cycle with its hooks may be the last that the program made.
    is_left = times > 1 or (facts.cycle is not None and facts.cycle.stays and not facts.is_model)
    if facts.cycle is not None and not facts.cycle.collectable:
        return Judgement(
            "cycle",
            "certain",
            "Nothing reaches it, and the garbage collector cannot free it, because the cycle leads through a graph",
            "refer weakly to tensors in hooks and functions of a graph",
        )
    of_library = facts.cycle is not None and facts.cycle.is_of_library and not facts.cycle.stays
    return Judgement(
        "cycle",
        "certain",
        "Nothing reaches it, but it waits for the next gc.collect()",
        facts.remedy or "break the cycle, for example with weakref.ref",
        # One cycle is no leak, nor are small ones: most programs have garbage that was not
        # collected yet, such as a trainer in a cycle with its model when main() returns.
        is_leak=not (of_library or facts.is_collected) and is_left and facts.nbytes >= WORTH_NBYTES,
    )


def _in_an_exception(facts: Facts) -> Judgement:
    if facts.program_died:
        return Judgement(
            "exception",
            "possible",
            "The exception that is being handled, or that ended the program, keeps the frames of its traceback",
            is_leak=False,
        )
    collects = facts.trend is not None or facts.generations >= REPEATED
    return Judgement(
        "exception",
        # A program may keep the last error on purpose.
        "certain" if collects else "likely",
        "A kept exception keeps the frames of its traceback with all their variables"
        if facts.is_in_traceback
        else "A kept exception keeps what it was made with",
        facts.remedy
        or ("keep its text, or set its __traceback__ to None" if facts.is_in_traceback else "keep its text"),
    )


def _in_a_graph(facts: Facts) -> Judgement:
    what = "The tensor is gone, but the graph of a kept one saved its memory for backward()"
    remedy = "keep loss.item() instead of the loss, detach() what else stays, or use torch.no_grad()"
    if facts.is_of_evaluation:
        what = "The tensor is gone, but a graph saved its memory for backward(), and the model is in eval mode"
        remedy = (
            'run it under dispose_scope(graph="none") or torch.no_grad(); disposescope.audit(model) lists what makes '
            "it record"
        )
    if facts.trend is not None and _is_worth_it(facts, facts.trend):
        return Judgement("graph", "certain" if facts.trend.over == "passes" else "likely", what, remedy)
    if _is_repeated(facts):
        return Judgement("graph", "likely", what, remedy)
    # A program that is to go back through so many evaluations rarely does so in eval mode.
    is_kept = facts.evaluations >= EVALUATIONS and facts.nbytes >= WORTH_NBYTES
    return Judgement("graph", "possible", what, remedy, is_leak=is_kept)


def outlived(judgement: Judgement) -> Judgement:
    """Return the judgement for graphs that no ``backward()`` can go through any more.

    Such graphs become more with time, so they are a leak.
    """
    what = f"{judgement.what}. Steps have changed what it saved, so that backward() cannot go through it any more"
    return replace(judgement, sure="likely", what=what, is_leak=True)


def _pinned(facts: Facts, sure: Sureness) -> Judgement:
    is_in_scope = facts.oldest.scope is not None
    out = ", or let it out of its scope with move_to_outer(view, compact=True)" if is_in_scope else ""
    return Judgement(
        "view",
        sure,
        "A view of a part keeps the whole memory alive",
        f"keep a copy of what is used{out}",
        is_leak=sure != "possible",
    )


def _is_repeated(facts: Facts) -> bool:
    return facts.count >= REPEATED and facts.generations >= REPEATED and facts.all_nbytes >= WORTH_NBYTES


def _is_worth_it(facts: Facts, trend: Trend) -> bool:
    """Return whether a growth is larger than that of a list of numbers, or has no bytes."""
    per_pass = trend.nbytes_per_pass + trend.count_per_pass * facts.nodes_nbytes / facts.count
    return per_pass >= _WORTH_PER_PASS or facts.all_nbytes >= WORTH_NBYTES or facts.oldest.nbytes == 0
