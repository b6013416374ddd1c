"""What an autograd graph pins, why one is recorded at all, and what in a model makes that happen.

This module does not import PyTorch. Where the program has not imported it, there are no tensors.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Literal, final

from ....scopes.base.errors import GraphRetainedError
from ....scopes.base.process import bytes_text, version_of
from ....scopes.base.sites import Role, mark_of, rank_of, site_of
from ....scopes.compiled import variables_of
from ....scopes.identity import refuse_disposed
from ....scopes.kinds import kind_of

if TYPE_CHECKING:
    from .walk import Graph

__all__ = [
    "GraphOp",
    "GraphSummary",
    "ModelAudit",
    "Recorder",
    "audit",
    "graph_nbytes",
    "graph_summary",
    "refuse_recording",
    "site_of_node",
    "summarise",
]

_NAMES_SHOWN: Final = 3
"""How many modules or lines of an op are printed; the others are counted."""
# The folder of this library.
_OURS: Final = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "")


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
        pinned = bytes_text(self.nbytes)
        lines = [f"a graph of {self.nodes:,} nodes from {self.first_op} to {self.last_op} pins {pinned}"]
        for row in self.ops:
            lines.append(f"{bytes_text(row.nbytes):>10}  {row.nodes:>7,} x {row.op}")
            lines.extend(f"{'':>12}{what}" for what in (_listed("in", row.modules), _listed("at", row.sites)) if what)
        if self.attribute_nbytes:
            lines.append(f"{bytes_text(self.attribute_nbytes):>10} more are kept as attributes of custom functions")
        if self.opaque_nodes:
            lines.append(f"{self.opaque_nodes:,} of the nodes do not show what they saved")
        return "\n".join(lines)


def graph_nbytes(tensor: object) -> int:
    """Return the bytes that the autograd graph behind a tensor pins for ``backward()``.

    Each storage counts once. The convention is that of
    ``torch.autograd.graph.saved_tensors_hooks``: all that was saved counts, parameters and inputs
    as well. 0 for a tensor without a graph, and after ``backward()``. Looks at every node once;
    runs no hook, unpacks nothing, and changes no version counter. If a hook packed something, the
    tensors in the packed object count. Memory that a backward pass on another thread is using
    counts as freed.

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
    """Return what the autograd graph behind a tensor pins, op by op, with modules and lines.

    Modules are found by their parameters, for which the objects of the program are searched: a
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
    a graph of 4 nodes from MulBackward0 to SumBackward0 pins 8.0 kB
        4.0 kB        1 x ExpBackward0
        4.0 kB        1 x MulBackward0
       0 bytes        1 x SumBackward0
       0 bytes        1 x AccumulateGrad
    """
    return summarise(_walk(tensor, "graph_summary"), with_modules=True)


def summarise(graph: Graph, *, with_modules: bool) -> GraphSummary:
    """Return the summary of a graph that has been walked.

    With modules, all objects of the program are searched.
    """
    if not graph.nodes:
        return GraphSummary()
    modules: dict[int, str] = {}
    if with_modules:
        from .walk import modules_of

        modules = modules_of(graph)
    first: tuple[int, str] | None = None
    last: tuple[int, str] | None = None
    counts: Counter[str] = Counter()
    nbytes: Counter[str] = Counter()
    # By op, in the order of the walk: the names of modules, and the lines.
    rows: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    traced = any("traceback_" in node.metadata for node in graph.ends)
    for key, node in graph.nodes.items():
        op = node.name().rpartition("::")[2]
        named, sites = rows.setdefault(op, ({}, {}))
        counts[op] += 1
        nbytes[op] += graph.bytes_of.get(key, 0)
        if key in modules:
            named[modules[key]] = None
        site = site_of_node(node) if traced else None
        if site is not None:
            sites[site] = None
        if op != "AccumulateGrad":
            # Nodes are numbered in the order in which ops run. The nodes of leaves all have the
            # greatest possible number.
            at = (node._sequence_nr(), op)
            first = at if first is None or at[0] < first[0] else first
            last = at if last is None or at[0] > last[0] else last
    ops = [GraphOp(op, counts[op], nbytes[op], tuple(named), tuple(sites)) for op, (named, sites) in rows.items()]
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
            refuse_disposed(root, kind)
    # `walk` imports PyTorch, which the program has imported by now.
    try:
        from .walk import walk_graph
    except (AttributeError, ImportError) as error:
        found = f"PyTorch {version_of('torch')} is not known to disposescope ({error})"
        raise ImportError(f"{verb}: {found}; python -m disposescope doctor tells more") from error
    return walk_graph(roots)


def _tensors_in_tree(tree: object, tensor_type: type) -> list[object]:
    """Return the tensors in a nesting of containers.

    Tensors are recognised by `type`: an attribute of a disposed tensor would raise.
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
    """Return the innermost line of user code that made a node, from the notes of anomaly mode."""
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
    more = len(names) - _NAMES_SHOWN
    return f"{how} {', '.join(names[:_NAMES_SHOWN])}{f' and {more} more' if more > 0 else ''}"


# Why a graph is recorded: the leaf that requires gradients, the module whose forward pass runs, and
# the line.


def refuse_recording(scope: str, tensor: Any, since: int, *, missed: bool) -> GraphRetainedError:
    """Return the error that says why a tensor has got a graph.

    Parameters
    ----------
    scope : str
        The name of the scope that refuses it, for the message.
    tensor : torch.Tensor
        A tensor whose graph has been recorded.
    since : int
        The number of the first node that was recorded.
    missed : bool
        Whether it was recorded by an earlier call than the one in the calling frame.
    """
    from .walk import walk_graph

    frame = sys._getframe(1)
    modules = _running_modules(frame)
    (leaf_kind, leaf_name), others = _leaf_behind(tensor.grad_fn, since, modules, frame)
    path = _path_of(modules)
    site = str(site_of(mark_of(frame)))
    summary = summarise(walk_graph([tensor]), with_modules=False)
    kind: Any = kind_of(tensor)
    op = tensor.grad_fn.name().rpartition("::")[2]
    inside = ""
    if modules:
        innermost = type(modules[-1]).__qualname__
        inside = f", in {innermost}" if not path else f", in {path} ({innermost}) of {type(modules[0]).__qualname__}"
    more = f" (and {others} more)" if others else ""
    recorded = "uses what a custom function or compiled code recorded as" if missed else "recorded"
    return GraphRetainedError(
        f'{scope} was opened with graph="refuse": {site}{inside}, {recorded} {op}, because {leaf_kind} {leaf_name}'
        f"{more} requires gradients; call requires_grad_(False) on it, register a statistic as a buffer, or compute "
        'under dispose_scope(graph="none") or torch.no_grad(); disposescope.audit(model) lists all that a '
        "model has of these",
        resource=kind.describe(tensor),
        nbytes=summary.nbytes,
        nodes=summary.nodes,
        first_op=summary.first_op or "",
        last_op=summary.last_op or "",
        site=site,
        module=path,
        leaf=leaf_name,
    )


def _running_modules(frame: FrameType | None) -> list[Any]:
    """Return the modules whose methods are running, the outermost first."""
    torch: Any = sys.modules["torch"]
    found: list[Any] = []
    while frame is not None:
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        if names and names[0] == "self":
            owner = variables_of(frame).get("self")
            if issubclass(type(owner), torch.nn.Module) and not (found and found[-1] is owner):
                found.append(owner)
        frame = frame.f_back
    return found[::-1]


def _path_of(modules: list[Any]) -> str:
    """Return the name of the last module in the first one.

    Each module was called by the one before it.
    """
    steps: list[str] = []
    for parent, child in pairwise(modules):
        name = next((name for name, module in parent.named_modules() if module is child), None)
        steps.append(f"<{type(child).__qualname__}>" if name is None else name)
    return ".".join(step for step in steps if step)


def _leaf_behind(node: Any, since: int, modules: list[Any], frame: FrameType) -> tuple[tuple[str, str], int]:
    """Return kind and name of the leaf for which a node was recorded, and how many others it has.

    The kind is such as ``"the parameter"``.
    """
    from .walk import leaves_behind

    leaves = leaves_behind(node, since)
    named: dict[int, tuple[str, str]] = {}
    # Compiled code has no frames for modules: then the model is in a variable.
    for module in modules or _modules_in_variables(frame):
        for what, name, tensor in _tensors_of_model(module):
            named.setdefault(id(tensor), (what, name))
    chosen = next((named[key] for key in named if any(id(leaf) == key for leaf in leaves)), None)
    if chosen is None and leaves:
        chosen = _variable_of(leaves[0], frame)
        if chosen is None:
            kind: Any = kind_of(leaves[0])
            chosen = ("a leaf", "" if kind is None else kind.describe(leaves[0]))
    return chosen or ("a leaf", "that is not known"), max(0, len(leaves) - 1)


def _modules_in_variables(innermost: FrameType) -> Iterator[Any]:
    """Yield the modules in variables of the program's running functions, and in its globals."""
    torch: Any = sys.modules["torch"]
    frame: FrameType | None = innermost
    while frame is not None:
        if rank_of(frame.f_code, frame.f_globals) in (Role.USER, Role.GENERATED):
            for value in (*variables_of(frame).values(), *frame.f_globals.copy().values()):
                if issubclass(type(value), torch.nn.Module):
                    yield value
        frame = frame.f_back


def _variable_of(tensor: Any, innermost: FrameType) -> tuple[str, str] | None:
    """Return kind and name of a variable that has a tensor as its value, or None.

    A variable of the outermost function of the program that has one, or else a global.
    """
    found: tuple[str, str] | None = None
    in_globals: tuple[str, str] | None = None
    frame: FrameType | None = innermost
    while frame is not None:
        if rank_of(frame.f_code, frame.f_globals) in (Role.USER, Role.GENERATED):
            for name, value in variables_of(frame).items():
                if value is tensor:
                    function = frame.f_code.co_qualname
                    found = ("the variable" if function == "<module>" else f"the variable of {function}()", name)
            if in_globals is None:
                names = (name for name, value in frame.f_globals.copy().items() if value is tensor)
                in_globals = next((("the variable", name) for name in names), None)
        frame = frame.f_back
    return found or in_globals


def _tensors_of_model(model: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield kind, name and tensor for each parameter, buffer and other tensor of a model."""
    torch: Any = sys.modules["torch"]
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield "the parameter", _plain_name(name), parameter
    for name, buffer in model.named_buffers(remove_duplicate=False):
        yield "the buffer", _plain_name(name), buffer
    for prefix, module in model.named_modules():
        attributes: dict[str, Any] = module.__dict__
        for attribute, value in attributes.copy().items():
            if attribute in _REGISTRIES:
                continue
            name = _plain_name(f"{prefix}.{attribute}" if prefix else attribute)
            for key, item in _items_of(value):
                if issubclass(type(item), torch.Tensor):
                    yield "the attribute", name if key is None else f"{name}[{key!r}]", item


def _items_of(value: Any) -> Iterator[tuple[object, Any]]:
    """Yield the items of a list, tuple or dict with index or key; any other value with None."""
    cls: Any = type(value)  # pyright: ignore[reportUnknownVariableType] (from Any)
    if cls is dict:
        yield from value.copy().items()
    elif cls in (list, tuple):
        yield from enumerate(list[Any](value))
    else:
        yield None, value


_REGISTRIES: Final = ("_parameters", "_buffers", "_modules")


def _plain_name(name: str) -> str:
    """Return a name without the part that ``torch.compile`` adds."""
    return name.replace("_orig_mod.", "")


# The audit of a model.

_STATISTIC: Final = re.compile(
    r"(^|_)(running|moving|ema|avg|average|stat|stats|statistic|statistics)(_|$)|^(mean|var|variance|std|num_batches_tracked)$"
)

Fault = Literal["statistic", "buffer", "attribute", "parameter", "grad mode"]
_ADVICE: Final[dict[Fault, str]] = {
    "statistic": "a statistic that is a parameter: register it with register_buffer()",
    "buffer": "a buffer that requires gradients: register tensor.detach()",
    "attribute": "a tensor in an attribute that requires gradients: keep tensor.detach()",
    "parameter": "a parameter that requires gradients: call requires_grad_(False) where it is not to be trained",
    "grad mode": 'grad mode is on: run it under dispose_scope(graph="none") or torch.no_grad()',
}


@final
@dataclass(frozen=True, slots=True)
class Recorder:
    """One thing that makes a model in eval mode record a graph.

    Attributes
    ----------
    fault : {"statistic", "buffer", "attribute", "parameter", "grad mode"}
        A parameter whose name is that of a statistic; a buffer, or a tensor in another attribute of
        a module, that requires gradients; any other parameter that does; grad mode.
    name : str
        The name in the model: ``"layers.3.norm.mean"``. Empty for grad mode.
    shape : tuple of int
        The shape of the tensor. Empty for grad mode.
    has_graph : bool
        Whether it carries a graph itself, from earlier steps.
    """

    fault: Fault
    name: str
    shape: tuple[int, ...] = ()
    has_graph: bool = False

    def __str__(self) -> str:
        if self.fault == "grad mode":
            return _ADVICE[self.fault]
        graph = ", and carries a graph from earlier steps" if self.has_graph else ""
        return f"{self.name} {self.shape}: {_ADVICE[self.fault]}{graph}"


@final
@dataclass(frozen=True, slots=True)
class ModelAudit:
    """What makes a model record graphs while it is in eval mode: what `audit` returns.

    False where nothing does.

    Attributes
    ----------
    recorders : tuple of Recorder
        Statistics first, then buffers, attributes, parameters, and grad mode.
    """

    recorders: tuple[Recorder, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.recorders)

    def __str__(self) -> str:
        return "\n".join(map(str, self.recorders)) or "nothing makes this model record a graph in eval mode"


def audit(model: Any) -> ModelAudit:
    """List what makes a model in eval mode record graphs for ``backward()``.

    Statistics that are registered as parameters, buffers and other attributes of modules that
    require gradients, parameters that require gradients, and grad mode where it is on while no
    module is in training mode. Parameters that are to be trained are listed only while grad mode
    is on: nothing is wrong with them under ``torch.no_grad()``. Changes nothing, and runs no
    forward pass.

    Parameters
    ----------
    model : torch.nn.Module
        The model, in either mode. What holds in eval mode is listed; grad mode is listed where all
        modules are in eval mode and something requires gradients.

    Returns
    -------
    ModelAudit
        One `Recorder` for each thing. A tensor with several names is listed by the first.

    Raises
    ------
    TypeError
        It is no ``torch.nn.Module``.

    Examples
    --------
    >>> import torch
    >>> import disposescope as ds
    >>> class Normalise(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.running_mean = torch.nn.Parameter(torch.zeros(3))
    ...
    ...     def forward(self, x):
    ...         return x - self.running_mean
    >>> print(ds.audit(torch.nn.Sequential(torch.nn.ReLU(), Normalise()).eval()))
    1.running_mean (3,): a statistic that is a parameter: register it with register_buffer()
    grad mode is on: run it under dispose_scope(graph="none") or torch.no_grad()
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not issubclass(type(model), torch.nn.Module):
        cls: Any = type(model)  # pyright: ignore[reportUnknownVariableType] (from Any)
        raise TypeError(f"audit: a torch.nn.Module is wanted, and a {cls.__module__}.{cls.__qualname__} was given")
    recording = bool(torch.is_grad_enabled())
    rows: dict[Fault, list[Recorder]] = {fault: [] for fault in _ADVICE}
    met: set[int] = set()
    with torch._C.DisableTorchFunction():
        for what, name, tensor in _tensors_of_model(model):
            if id(tensor) in met or not tensor.requires_grad:
                continue
            met.add(id(tensor))
            fault: Fault = "buffer" if what == "the buffer" else "attribute" if what == "the attribute" else "parameter"
            if fault == "parameter" and _STATISTIC.search(name.rpartition(".")[2]):
                fault = "statistic"
            if recording or fault != "parameter":
                rows[fault].append(Recorder(fault, name, tuple(tensor.shape), not tensor.is_leaf))
    if recording and any(rows.values()) and not any(module.training for module in model.modules()):
        rows["grad mode"].append(Recorder("grad mode", ""))
    return ModelAudit(tuple(recorder for found in rows.values() for recorder in found))
