"""The line that adds to a container, found in the source of the module or class that has it."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from ...scopes.base.sites import Site
from .origins import Origin
from .paths import steps
from .references import class_of, is_module, named_in
from .roots import is_of_library

__all__ = [
    "adding_lines",
    "growing_line",
]

_ADDING_METHODS: Final = frozenset({"append", "appendleft", "add", "extend", "insert", "setdefault", "update"})

_FILES_PARSED: Final = 64
"""So many parsed files are kept: a report asks for several containers of the same file."""


def growing_line(origin: Origin, chain: list[object]) -> Site | None:
    """Return the only line that adds to a container; None where there is none, or more than one.

    Parameters
    ----------
    origin : Origin
        Where the chain begins.
    chain : list
        Objects, each of which refers to the next, the container last.
    """
    if len(chain) > 1:
        *_, step = steps(chain[-3:])
        owner = next((thing for thing in reversed(chain[:-1]) if class_of(thing) is not dict), None)
        if not step.startswith(".") or owner is None:
            return None
        cls = owner if isinstance(owner, type) else class_of(owner)
        file = _file_of(named_in(cls, "__module__"))
        found = None if file is None else adding_lines(_source(file), step.removeprefix("."), is_attribute=True)
    else:
        if origin.kind != "module":
            return None
        file = _file_of(origin.owner)
        found = None if file is None else adding_lines(_source(file), origin.variable, is_attribute=False)
    if file is None or found is None or len(found) != 1:
        return None
    [(line, function)] = found
    return Site(file, line, function)


def adding_lines(source: str, name: str, *, is_attribute: bool) -> list[tuple[int, str]]:
    """Return the lines that add to what a name refers to, each with its function.

    Parameters
    ----------
    source : str
        The source of a module. If it does not parse, no line is returned.
    name : str
        The name of a global variable or of an attribute.
    is_attribute : bool
        Whether it is the name of an attribute.
    """
    try:
        tree = _parsed(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    return list(dict.fromkeys(_additions(tree, name, is_attribute, "<module>")))


@lru_cache(maxsize=_FILES_PARSED)
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _additions(node: ast.AST, name: str, is_attribute: bool, function: str) -> Iterator[tuple[int, str]]:
    """Yield each line below a node that adds to what a name refers to, and its function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if is_attribute or not _binds(child, name):
                yield from _additions(child, name, is_attribute, child.name)
            continue
        target: ast.expr | None = None
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute) and child.func.attr in _ADDING_METHODS:
            target = child.func.value
        elif isinstance(child, ast.AugAssign):
            target = child.target.value if isinstance(child.target, ast.Subscript) else child.target
        elif isinstance(child, ast.Assign):
            target = next((assigned.value for assigned in child.targets if isinstance(assigned, ast.Subscript)), None)
        if target is not None and _is_named(target, name, is_attribute):
            yield target.lineno, function
        yield from _additions(child, name, is_attribute, function)


def _is_named(target: ast.expr, name: str, is_attribute: bool) -> bool:
    if isinstance(target, ast.Attribute):
        return is_attribute and target.attr == name
    return not is_attribute and isinstance(target, ast.Name) and target.id == name


def _binds(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    """Return whether a name is a parameter or a local variable of a function."""
    is_global = any(isinstance(node, ast.Global) and name in node.names for node in ast.walk(function))
    return not is_global and any(
        (isinstance(node, ast.arg) and node.arg == name)
        or (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store))
        for node in ast.walk(function)
    )


def _file_of(module: object) -> str | None:
    """Return the file of an imported module of the program; None for a library's."""
    # A queue adds to its deque in the standard library: that line tells the reader nothing.
    found = sys.modules.get(module) if type(module) is str and not is_of_library(module) else None
    file = named_in(found, "__file__") if found is not None and is_module(found) else None
    return file if type(file) is str else None


def _source(file: str) -> str:
    return "".join(linecache.getlines(file))
