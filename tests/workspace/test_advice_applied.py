"""Advice to delete a variable, written into small programs: the peak is what was said."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import disposescope as ds

N = 100_000

# What `x` goes into, and whether anything has it still, so that deleting `x` alone frees nothing.
KEPT = {
    "a tuple, beside a computation": "pair = (x, x * 2)",
    "a tuple of several lines": "pair = (\n        x,\n        x.shape,\n    )",
    "a list": "kept.append(x)",
    "a list, beside a computation": "kept.append((x, x > 0))",
    "a dict in a list": "kept.append({'x': x, 'mean': x.mean()})",
    "a dict by its class": "pair = dict(x=x)",
    "an object": "node = Node(x)",
    "an attribute of a module's object": "node.value, node.shape = x, x.shape * 2",
    "an attribute by a function": "setattr(node, 'value', x)",
    "a view by a slice": "v = x[: N - 1]",
    "a view by a condition": "v = x if N else x * 2",
    "a view by a function": "v = np.flip(x)",
    "views by a function": "v = np.array_split(x, 2)",
    "a view by a function of a part": "v = np.lib.stride_tricks.sliding_window_view(x, 3)",
    "a view by a method": "v = x.reshape(2, -1)",
    "a view by a helper": "v = first_half(x)",
    "a memoryview": "v = memoryview(x)",
    "an iterator": "v = enumerate(x)",
    "a function": "v = functools.partial(np.add, x)",
    "a function that keeps": "remember(x)",
    "a method of an array of a module": "v = this.table.searchsorted(x)",
    "a method that keeps": "store.take(x)",
    "a variable of a loop": "for v in x.reshape(2, -1):\n        pass",
    "a global variable": "global g\n    g = x",
    "another name": "v = y0 = x",
    "a name in an expression": "float((v := x).sum())",
}
FREE = {
    "an operator": "v = x * 2",
    "a function of NumPy": "v = np.sqrt(x)",
    "a method": "v = float(x.sum())",
    "a method that copies": "v = x.copy()",
    "a cast": "v = x.astype('f4')",
    "a builtin function": "v = len(x)",
    "a function that joins": "v = np.concatenate([x, x])",
    "a helper that computes": "v = scaled(x, 2)",
    "a helper that computes by name": "v = scaled(factor=2, x=x)",
    "a helper that may give it back": "float(first_half(x).sum())",
    "a method that computes": "v = store.scale(x)",
    "a method of a ufunc": "v = np.add.reduce(x)",
    "a condition": "v = 2 if x[0] else 3",
    "an index": "v = np.arange(N)[x.astype(int)]",
    "a place in another": "z0 = np.zeros(N)\n    z0[:] = x",
    "an argument": "v = np.add(x, 1, where=x > 0, out=None)",
    "a text": "v = f'{x[0]:.1f}'",
    "a statement in an if": "if N:\n        v = x * 2",
    "a statement in a loop": "for _ in range(3):\n        v = x * 2",
    "a statement in a loop of several lines": "for _ in range(2):\n        v = float(x.sum())\n        v += 1",
}
HELPERS = """
import functools
import sys
import numpy as np

this = sys.modules[__name__]
table = np.ones(3)
kept = []

class Node:
    def __init__(self, value):
        self.value = value

class Store:
    def take(self, value):
        made = value * 0
        self.value = value
        return made

    def scale(self, value):
        return value * 2

node = Node(None)
store = Store()

def first_half(values):
    return values[: len(values) // 2]

def scaled(x, factor):
    made = x * factor
    return made + 1

def remember(value):
    kept.append(value)
"""
PROGRAM = """
def step():
    x = np.ones(N)
    {use}
    a = np.ones(N)
    b = a + 1.0
    c = b * 2.0
    return float(c.sum())
"""


def peak_of(file: Path, text: str) -> ds.Peak:
    file.write_text(text, encoding="utf-8")
    sys.modules["program"] = module = ModuleType("program")
    module.__file__ = str(file)
    names = vars(module)
    names["N"] = N
    exec(compile(text, str(file), "exec"), names)
    step: Callable[[], float] = names["step"]
    workspace = ds.Workspace("program")
    for _ in range(2):
        names["kept"].clear()
        names["node"].value = names["store"].value = None
        with workspace.run():
            result = step()
    assert result > 0
    try:
        return workspace.peak()
    finally:
        del sys.modules["program"]


def deleted(text: str, name: str, line: int, *, after_block: bool) -> str:
    """Return a program with a ``del`` behind the statement that ends at a line."""
    ends = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt) and node.end_lineno == line and not isinstance(node, ast.FunctionDef)
    ]
    # The outermost with a block, or the innermost.
    statement = (
        min(ends, key=lambda node: node.col_offset) if after_block else max(ends, key=lambda node: node.col_offset)
    )
    assert after_block == (statement.lineno < line and hasattr(statement, "body"))
    lines = text.split("\n")
    lines.insert(line, " " * statement.col_offset + f"del {name}")
    return "\n".join(lines)


def texts(peak: ds.Peak, beginning: str, end: str = "") -> list[str]:
    return [each.text for each in peak.advice if each.text.startswith(beginning) and each.text.endswith(end)]


def deletions(peak: ds.Peak) -> Iterator[tuple[str, int, bool, ds.Advice]]:
    for advice in peak.advice:
        found = re.fullmatch(r"del (\w+) after (the .* that ends at )?.*:(\d+)", advice.text)
        if found is not None:
            yield found[1], int(found[3]), found[2] is not None, advice


@pytest.mark.parametrize("use", KEPT.values(), ids=list(KEPT))
def test_nothing_is_said_of_a_variable_whose_value_is_kept(tmp_path: Path, use: str) -> None:
    peak = peak_of(tmp_path / "kept.py", HELPERS + PROGRAM.format(use=use))
    assert [name for name, *_ in deletions(peak) if name == "x"] == []
    assert peak.nbytes >= 4 * 8 * N


@pytest.mark.parametrize("use", FREE.values(), ids=list(FREE))
def test_the_peak_is_what_was_said_where_it_is_used_up(tmp_path: Path, use: str) -> None:
    text = HELPERS + PROGRAM.format(use=use)
    peak = peak_of(tmp_path / "free.py", text)
    told = {name: (line, after_block, advice) for name, line, after_block, advice in deletions(peak)}
    assert "x" in told
    for number, (name, (line, after_block, advice)) in enumerate(told.items()):
        after = peak_of(tmp_path / f"free_{number}.py", deleted(text, name, line, after_block=after_block))
        assert after.nbytes == pytest.approx(advice.peak_nbytes, rel=0.02)


NOT_IN_PLACE = {
    "a product of matrices": "h = np.matmul(h, w)",
    "another view of the operand": "h = h + h.T",
    "the operand backwards": "h = h + h[::-1]",
    "a choice": "h = np.exp(h)[np.arange(300)]",
    "whole numbers": "h = np.arange(N) * 0.5",
    "a product that is no ufunc": "h = np.dot(h, w)",
}


@pytest.mark.parametrize("made", NOT_IN_PLACE.values(), ids=list(NOT_IN_PLACE))
def test_nothing_is_written_over_what_is_read(tmp_path: Path, made: str) -> None:
    program = f"""
def step():
    w = np.eye(300)
    h = np.ones((300, 300))
    {made}
    return float(abs(h).sum())
"""
    peak = peak_of(tmp_path / "program.py", HELPERS + program)
    line = 1 + (HELPERS + program).split("\n").index(f"    {made}")
    assert texts(peak, "in place", f":{line}") == []


NOT_MADE_AGAIN = {
    "by chance": "gate = np.random.default_rng(1).random(N)",
    "of what changes": "gate = base * 2.0\n    base = np.ones(3)",
    "and filled": "gate = np.zeros(N)\n    gate[0] = 1.0",
    "by several operations": "gate = (base * 2.0 + 1.0) * 3.0",
}


@pytest.mark.parametrize("made", NOT_MADE_AGAIN.values(), ids=list(NOT_MADE_AGAIN))
def test_nothing_is_made_again_that_would_be_another(tmp_path: Path, made: str) -> None:
    program = f"""
def step():
    base = np.ones(N)
    {made}
    total = float(gate.sum())
    a = np.ones(2 * N)
    b = a * 2.0
    total += float(b.sum())
    del a, b
    return total + float((gate * 3.0).sum())
"""
    peak = peak_of(tmp_path / "program.py", HELPERS + program)
    assert texts(peak, "recompute") == []


def test_a_global_variable_that_a_function_reads_is_left_alone(tmp_path: Path) -> None:
    program = """
table = np.ones(N)

def step():
    return float(table.sum()) + float((np.ones(N) * 2 + 1).sum())
"""
    peak = peak_of(tmp_path / "program.py", HELPERS + program)
    assert [name for name, *_ in deletions(peak) if name == "table"] == []


def test_nothing_is_said_of_code_without_source() -> None:
    names: dict[str, Any] = {"np": np, "N": N}
    exec(compile(PROGRAM.format(use="v = x * 2"), "<nowhere>", "exec"), names)
    workspace = ds.Workspace("nowhere")
    with workspace.run():
        names["step"]()
    assert workspace.peak().advice == ()
