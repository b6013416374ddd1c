"""Which modules the nodes of an autograd graph came from, told by the parameters that they lead to."""

from __future__ import annotations

import gc
from typing import Any

import torch

from ._graph_walk import ACCUMULATE, Graph

__all__ = ["modules_of"]


def modules_of(graph: Graph) -> dict[int, str]:
    """For each node that takes a parameter, the name of the module that has the parameter.

    A name starts with the class of the outermost module: ``"Sequential.0"``. Where a parameter belongs to no module
    that is alive, or more than one node (the transpose of a weight) stands between the two, nothing is told.
    """
    taken: dict[int, list[int]] = {}
    for key, node in graph.nodes.items():
        if node.name() == ACCUMULATE:
            taken.setdefault(id(node.variable), []).append(key)
    if not taken:
        return {}
    owners = _owners(set(taken))
    named = {key: owners[parameter] for parameter, keys in taken.items() if parameter in owners for key in keys}
    # A weight is often taken through one node of its own: its transpose.
    through = {key: named[below[0]] for key, below in graph.edges.items() if len(below) == 1 and below[0] in named}
    found: dict[int, str] = {}
    for key, below in graph.edges.items():
        direct = [named[child] for child in below if child in named]
        if direct:
            found[key] = direct[0]
        else:
            indirect = [through[child] for child in below if child in through]
            if indirect:
                found[key] = indirect[0]
    return found


def _owners(parameters: set[int]) -> dict[int, str]:
    """For each of some parameters, by ``id``, the name of the module that has it."""
    modules: dict[int, Any] = {}
    children: set[int] = set()
    for thing in gc.get_objects():
        # By type: isinstance asks the object, and a disposed one raises.
        if issubclass(type(thing), torch.nn.Module):
            modules[id(thing)] = thing
            children.update(id(child) for child in _registered(thing, "_modules").values())
    roots = [module for key, module in modules.items() if key not in children] or list(modules.values())
    owners: dict[int, str] = {}
    met: set[int] = set()
    pending = [(root, type(root).__qualname__) for root in roots][::-1]
    while pending:
        module, name = pending.pop()
        if id(module) in met:
            continue
        met.add(id(module))
        for parameter in _registered(module, "_parameters").values():
            if id(parameter) in parameters:
                owners.setdefault(id(parameter), name)
        children_named = _registered(module, "_modules").items()
        below = [(child, f"{name}.{key}") for key, child in children_named if child is not None]
        pending.extend(below[::-1])
    return owners


def _registered(module: Any, what: str) -> dict[str, Any]:
    """The dict of submodules or parameters of a module, without asking the module; empty where it is half made."""
    state: Any = module.__dict__
    registered: dict[str, Any] | None = state.get(what)
    return registered or {}
