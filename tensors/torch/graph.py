"""What an autograd graph pins: the bytes that wait for ``backward()``, and where they come from.

PyTorch is not imported here. Where the program has not imported it, no tensor of its can be given
either.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from ...scopes.identity import check_alive
from ...scopes.kinds import kind_of

if TYPE_CHECKING:
    from .graph_walk import Graph

__all__ = [
    "GraphOp",
    "GraphSummary",
    "graph_nbytes",
    "graph_summary",
    "site_of_node",
    "summarise",
]

_SITES_SHOWN: Final = 3
_OURS: Final = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


@final
@dataclass(frozen=True, slots=True)
class GraphOp:
    """What all nodes of one op in a graph have in common.

    Attributes
    ----------
    op : str
        The name that autograd gives the op: ``"ConvolutionBackward0"``.
    nodes : int
        How many nodes there are of it.
    nbytes : int
        The bytes that they saved. A storage counts for the node nearest to the end of the graph
        that saved it, and for no other.
    modules : tuple of str
        The modules whose parameters these nodes took: ``"Sequential.0"``.
    sites : tuple of str
        The lines that made them: ``"train.py:12 in step()"``. Known where the forward pass ran
        under ``torch.autograd.set_detect_anomaly(True)``.
    """

    op: str
    nodes: int
    nbytes: int
    modules: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class GraphSummary:
    """What the autograd graph behind one or several tensors pins.

    A snapshot: it refers to no tensor and no node.

    Attributes
    ----------
    nbytes : int
        The bytes that the nodes saved, each storage once. Saved parameters, buffers and inputs
        count like anything else that was saved: it is what
        ``torch.autograd.graph.saved_tensors_hooks`` would see. 0 after ``backward()``.
    nodes : int
        The nodes; each leaf that gets a gradient adds one (``AccumulateGrad``). They stay after
        ``backward()``.
    first_op, last_op : str or None
        The op that ran first, and the one whose result the tensor is. None where there is no graph.
    ops : tuple of GraphOp
        A row for each op, most bytes first.
    attribute_nbytes : int
        The bytes of tensors that custom functions keep as attributes of their ``ctx`` and that no
        node saved. Not in `nbytes`, because no hook sees them; ``backward()`` does not free them.
    opaque_nodes : int
        Nodes that do not show what they saved: writes into a view (``y[0] *= w``), ops of
        extensions. Not in `nbytes`.
    """

    nbytes: int = 0
    nodes: int = 0
    first_op: str | None = None
    last_op: str | None = None
    ops: tuple[GraphOp, ...] = ()
    attribute_nbytes: int = 0
    opaque_nodes: int = 0

    def __str__(self) -> str:
        if not self.nodes:
            return "no graph"
        lines = [f"a graph of {self.nodes:,} nodes from {self.first_op} to {self.last_op} pins {self.nbytes:,} bytes"]
        for row in self.ops:
            lines.append(f"{row.nbytes:>15,} bytes  {row.nodes:>7,} x {row.op}")
            lines.extend(f"{'':>23}{what}" for what in (_listed("in", row.modules), _listed("at", row.sites)) if what)
        if self.attribute_nbytes:
            lines.append(f"{self.attribute_nbytes:>15,} bytes more are kept as attributes of custom functions")
        if self.opaque_nodes:
            lines.append(f"{self.opaque_nodes:,} of the nodes do not show what they saved")
        return "\n".join(lines)


def graph_nbytes(tensor: object) -> int:
    """The bytes that the autograd graph behind a tensor pins for ``backward()``, each storage counted once.

    The convention is that of ``torch.autograd.graph.saved_tensors_hooks``: all that was saved
    counts, parameters and inputs as well. 0 for a tensor without a graph, and after ``backward()``.
    Looks at every node once; runs no hook, unpacks nothing, and changes no version counter. What a
    hook packed counts for the tensors in what it packed.

    Parameters
    ----------
    tensor : torch.Tensor
        A tensor, or a nesting of lists, tuples, dicts and other mappings of tensors, such as the
        outputs of an LSTM.

    Returns
    -------
    int
        The bytes. Tensors on the meta device have none.

    Raises
    ------
    TypeError
        What was given is no PyTorch tensor and holds none.
    DisposedError
        A tensor has been disposed. Its graph may live on, but it is not this handle's any more.

    Examples
    --------
    >>> import torch
    >>> import disposescope as ds
    >>> weight = torch.ones(1000, requires_grad=True)
    >>> loss = (weight * weight).exp().sum()
    >>> ds.graph_nbytes(loss)
    8000
    >>> loss.backward()
    >>> ds.graph_nbytes(loss)
    0
    """
    return _walk(tensor, "graph_nbytes").nbytes


def graph_summary(tensor: object) -> GraphSummary:
    """What the autograd graph behind a tensor pins, op by op, with the modules and lines that the ops came from.

    Modules are told by their parameters, for which the objects of the program are searched: a
    matter of tenths of a second in a big program. Lines are known where the forward pass ran under
    ``torch.autograd.set_detect_anomaly(True)``.

    Parameters
    ----------
    tensor : torch.Tensor
        A tensor, or a nesting of tensors: as for `graph_nbytes`.

    Raises
    ------
    TypeError, DisposedError
        As for `graph_nbytes`.

    Examples
    --------
    >>> import torch
    >>> import disposescope as ds
    >>> weight = torch.ones(1000, requires_grad=True)
    >>> print(ds.graph_summary((weight * weight).exp().sum()))
    a graph of 4 nodes from MulBackward0 to SumBackward0 pins 8,000 bytes
              4,000 bytes        1 x ExpBackward0
              4,000 bytes        1 x MulBackward0
                  0 bytes        1 x SumBackward0
                  0 bytes        1 x AccumulateGrad
    """
    return summarise(_walk(tensor, "graph_summary"), with_modules=True)


def summarise(graph: Graph, *, with_modules: bool) -> GraphSummary:
    """The summary of a graph that has been walked; without modules, it costs no search."""
    if not graph.nodes:
        return GraphSummary()
    modules: dict[int, str] = {}
    if with_modules:
        from .graph_walk import modules_of

        modules = modules_of(graph)
    first: tuple[int, str] | None = None
    last: tuple[int, str] | None = None
    rows: dict[str, tuple[list[int], dict[str, None], dict[str, None]]] = {}
    traced = any("traceback_" in node.metadata for node in graph.ends)
    for key, node in graph.nodes.items():
        op = node.name().rpartition("::")[2]
        counts, named, sites = rows.setdefault(op, ([0, 0], {}, {}))
        counts[0] += 1
        counts[1] += graph.bytes_of.get(key, 0)
        if key in modules:
            named[modules[key]] = None
        site = site_of_node(node) if traced else None
        if site is not None:
            sites[site] = None
        if op != "AccumulateGrad":
            # Ops are numbered as they run; the nodes of leaves all have the greatest number there
            # is.
            at = (node._sequence_nr(), op)
            first = at if first is None or at[0] < first[0] else first
            last = at if last is None or at[0] > last[0] else last
    ops = [GraphOp(op, counts[0], counts[1], tuple(named), tuple(sites)) for op, (counts, named, sites) in rows.items()]
    ops.sort(key=lambda row: -row.nbytes)
    return GraphSummary(
        nbytes=graph.nbytes,
        nodes=len(graph.nodes),
        first_op=None if first is None else first[1],
        last_op=None if last is None else last[1],
        ops=tuple(ops),
        attribute_nbytes=graph.attribute_bytes,
        opaque_nodes=graph.opaque,
    )


def _walk(tensor: object, verb: str) -> Graph:
    torch: Any = sys.modules.get("torch")
    roots = [] if torch is None else _tensors_in_tree(tensor, torch.Tensor)
    if not roots:
        cls = type(tensor)
        what = f"{cls.__module__}.{cls.__qualname__}"
        if torch is None:
            raise TypeError(
                f"{verb}: a PyTorch tensor is wanted, and a {what} was given; the program has not imported torch"
            )
        raise TypeError(f"{verb}: a PyTorch tensor, or a nesting of them, is wanted, and a {what} was given")
    for root in roots:
        kind = kind_of(root)
        if kind is not None:
            check_alive(root, kind)
    # PyTorch has been imported by the program: now it may be imported here.
    from .graph_walk import walk_graph

    return walk_graph(roots)


def _tensors_in_tree(tree: object, tensor_type: type) -> list[object]:
    """The tensors in a nesting of containers.

    By type: asking a disposed tensor for its class would raise.
    """
    found: list[object] = []
    met: dict[int, object] = {}
    pending: list[Any] = [tree]
    while pending:
        node = pending.pop()
        cls: Any = type(node)  # pyright: ignore[reportUnknownVariableType] (from Any)
        if id(node) in met:
            continue
        met[id(node)] = node
        if issubclass(cls, tensor_type):
            found.append(node)
        elif issubclass(cls, (list, tuple, set, frozenset)):
            pending.extend(reversed(list(node)))
        elif issubclass(cls, Mapping):
            pending.extend(reversed([node[key] for key in node]))
    return found


def site_of_node(node: Any) -> str | None:
    """The line that made a node, as anomaly mode wrote it down: the innermost that is neither PyTorch's nor ours."""
    torch_file: str = sys.modules["torch"].__file__ or ""
    libraries = (os.path.join(os.path.dirname(torch_file), ""), _OURS)
    for frame in reversed(node.metadata.get("traceback_", ())):
        # As `traceback.format_stack` formats: ``  File "train.py", line 12, in step``.
        head = frame.split("\n", 1)[0].strip()
        file, _, rest = head.removeprefix('File "').partition('", line ')
        line, _, function = rest.partition(", in ")
        if not file.startswith(libraries):
            return f"{file}:{line}" if function in ("<module>", "") else f"{file}:{line} in {function}()"
    return None


def _listed(how: str, names: tuple[str, ...]) -> str:
    if not names:
        return ""
    more = len(names) - _SITES_SHOWN
    return f"{how} {', '.join(names[:_SITES_SHOWN])}{f' and {more} more' if more > 0 else ''}"
