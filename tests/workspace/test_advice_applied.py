"""Advice to delete a variable, written into small programs: the peak is what was said."""

from __future__ import annotations

import ast
import re
import subprocess
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
    "a method that keeps": "store.take(x)",
    "a variable of a loop": "for v in x.reshape(2, -1):\n        pass",
    "a global variable": "global g\n    g = x",
    "another name": "v = y0 = x",
    "a name in an expression": "float((v := x).sum())",
    "a list that is added": "hist = []\n    hist = hist + [x]",
    "a tuple that is added": "pair = (1,) + (x,)",
    "a dict that is joined": "pair = {} | {'x': x}",
    "a list that grows": "hist = []\n    hist += [x]",
    "a sum of lists": "v = sum([[x]], [])",
    "a part of a list": "rows = []\n    rows[:] = [x]",
    "an operator of the program's": "v = Keeper() + x",
    "a comparison of the program's": "v = Keeper() == x",
    "a ufunc of the program's": "v = np.add(x, Taker())",
    "an operator of a subclass": "v = np.zeros(3).view(Sub) + x",
    "its flags": "v = x.flags",
    "the result of a ufunc": "v = np.add(np.ones(N), 1, x)",
    "the result of a function": "v = np.clip(np.ones(N), 0, 1, x)",
    "a copy of a list": "v = copy.copy([x])",
    "a callback": "np.apply_along_axis(remember, 0, x)",
    "a method of a class": "v = store.both(2, x)",
    "all variables of a helper": "v = note(x)",
    "a text that is run": "float(x[0])\n    v = eval('x')",
    "a view by indices": "v = np.einsum('i->i', x)",
    "the conjugate of real numbers": "v = x.conj()",
    "a check": "v = np.asarray_chkfinite(x)",
    "no difference": "v = np.diff(x, 0)",
    "no copy, by position": "v = np.nan_to_num(x, False)",
    "a cast without a copy, by position": "v = x.astype('f8', 'K', 'unsafe', True, False)",
    "a masked array": "v = np.ma.masked_invalid(x, copy=False)",
    "an array of objects": "v = np.array([x, None], dtype=object)",
    "other bytes": "v = x.byteswap(True)",
    "a place in an array of objects": "v = np.empty(1, object)\n    v[0] = x",
    "a place in an array of objects, by name": "v = np.empty(1, dtype=object)\n    v[0] = x",
    "a place in an array of nothing": "v = np.full(1, None)\n    v[0] = x",
    "the edges of a histogram": "v = np.histogram(np.ones(3), x)",
    "the edges of a histogram, by name": "v = np.histogram(np.ones(3), bins=x)",
    "a partial that is called": "add = functools.partial(keep_second, 1)\n    v = add(x)",
    "a method under another name": "take = store.take_it\n    v = take(x)",
    "a function whose name is bound anew": (
        "global chosen\n    chosen = keep_it\n    v = chosen(x)\n    chosen = scaled_by_two"
    ),
    "an exception": "try:\n        fail(x)\n    except ValueError as error:\n        kept.append(error)",
    "an exception of a helper": "v = tried(x)",
    "a class that is made": "v = type('Box', (), {'x': x})",
    "a sum of lists, by name": "v = sum([[x]], start=[])",
    "a place in a list of an array": "v = np.zeros(3).tolist()\n    v[0] = x",
    "a place in an array of a text's type": "v = np.empty(1, dtype='object')\n    v[0] = x",
    "a place in repeated nothing": "v = np.repeat(None, 2)\n    v[0] = x",
    "a place in an array that is full of nothing": "v = np.full(2, fill_value=None)\n    v[0] = x",
    "the result of a method of a ufunc": "v = np.add.reduce(np.ones((2, N)), 0, None, x)",
    "a place in what a pattern binds": (
        "box = np.zeros(1)\n    match ([None],):\n        case (box,):\n            pass\n    box[0] = x"
    ),
    "a place in a list that is an array later": "results[0] = x",
    "a method of a dict": "v = {'x': x}.copy()",
    "a helper of a list": "v = twice([x])",
    "a helper that joins lists": "v = combine([], [x])",
    "a helper that returns a list": "v = wrapped(x).copy()",
    "an array of dicts": "v = np.array([{'x': x}])",
    "functions of a list": "for k in range(2):\n        f = [scaled_by_two, kept.append][k]\n        v = f(x)",
    "functions as arguments": "for f in (scaled_by_two, kept.append):\n        v = called(f, x)",
    "functions of an attribute": ("for node.act in (scaled_by_two, kept.append):\n        v = node.act(x)"),
    "an exception of NumPy": (
        "try:\n        np.linalg.inv(x)\n    except np.linalg.LinAlgError as error:\n        kept.append(error)"
    ),
    "the exception that is handled": (
        "try:\n        fail(x)\n    except ValueError:\n        kept.append(sys.exc_info())"
    ),
    "an exception that a context keeps": "with pytest.raises(ValueError) as v:\n        fail(x)",
    "an exception that a context in a variable keeps": (
        "context = pytest.raises(ValueError)\n    with context as v:\n        fail(x)"
    ),
    "a place in an array like one of objects": "v = np.empty_like(objects)\n    v[0] = x",
    "a place in an array with another's type": "v = np.empty(1, dtype=objects.dtype)\n    v[0] = x",
    "a place in an array of objects of the module": "objects[0] = x",
    "a place in joined objects": "v = np.concatenate([objects, objects])\n    v[0] = x",
    "a place in repeated objects": "v = np.tile([None, None], 2)\n    v[0] = x",
    "a place in objects without the first": "v = np.delete(np.tile(objects, 2), 0)\n    v[0] = x",
    "a place in computed objects": "v = np.zeros(1, object) * 2\n    v[0] = x",
    "a place in objects that are numbers at first": "v = np.zeros(2).astype(object)\n    v[0] = x",
    "a place in an array of an unknown type": "v = np.empty(2, Node.kind)\n    v[0] = x",
    "a place in an array of an unknown type, by name": "v = np.empty(2, dtype=Node.kind)\n    v[0] = x",
    "the message of an assertion": (
        "try:\n        assert x[0] > 1, x\n    except AssertionError as error:\n        kept.append(error)"
    ),
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
    "a method of an array of a module": "v = this.table.searchsorted(x)",
    "an operator with an unknown operand": "v = x @ node.matrix",
    "a sum": "total = 0.0\n    total += x[0] + x[1] * 2.0",
    "a value that grows": "total = np.zeros(N)\n    total += x\n    del total",
    "a known function under another name": "xp = np\n    v = xp.concatenate([x, x])[:1].copy()",
    "a context": "with np.errstate(all='ignore'):\n        v = float(x.sum())",
    "what is changed": "x.fill(2.0)\n    x[0] = 1.0\n    np.copyto(x, 3.0)",
    "a condition": "v = 2 if x[0] else 3",
    "an index": "v = np.arange(N)[x.astype(int)]",
    "a place in another": "z0 = np.zeros(N)\n    z0[:] = x",
    "a place in joined arrays": "z0 = np.concatenate([np.ones(3), np.zeros(N)])\n    z0[3:] = x",
    "a place in whole numbers": "z0 = np.zeros(N, int)\n    z0[:] = x",
    "a place in a cast": "z0 = np.abs(np.ones(N)).astype('i4')\n    z0[:] = x",
    "an argument": "v = np.add(x, 1, where=x > 0, out=None)",
    "a text": "v = f'{x[0]:.1f}'",
    "a histogram": "v = float(np.histogram(x, 3)[0][0])",
    "a partial that computes": "twice = functools.partial(scaled, factor=2)\n    v = twice(x)",
    "an exception that is told": "try:\n        fail(x)\n    except ValueError as error:\n        v = str(error)",
    "a helper that raises another": "v = tried_by_raising(x)",
    "an assertion": "assert x[0] == 1.0, 'a text'",
    "a list of a helper": "v = stacked([x, x])",
    "a method of an argument": "v = by_store(store, x)",
    "an array of another's type": "v = np.zeros_like(x)\n    v[:] = x",
    "a statement in a loop with a try statement": (
        "for _ in range(2):\n        try:\n            v = float(x.sum())\n        except ValueError:\n"
        "            continue\n        v += 1"
    ),
    "a statement in a loop with a context": (
        "for _ in range(2):\n        with np.errstate(all='ignore'):\n            v = float(x.sum())"
    ),
    "a statement in a try statement": (
        "try:\n        y = np.ones(N)\n        float(y.sum())\n        v = np.ones(N)\n"
        "    except ValueError:\n        raise\n    v = float(x.sum())"
    ),
    "a statement in an if": "if N:\n        v = x * 2",
    "a statement in a loop": "for _ in range(3):\n        v = x * 2",
    "a statement in a loop of several lines": "for _ in range(2):\n        v = float(x.sum())\n        v += 1",
}
HELPERS = """
import copy
import functools
import sys
import numpy as np
import pytest

this = sys.modules[__name__]
table = np.ones(3)
wide = np.ones((1, 300, 300))
kept = []

class Node:
    kind = object

    def __init__(self, value):
        self.value = value

class Store:
    def take(self, value):
        made = value * 0
        self.value = value
        return made

    def take_it(this, value):
        this.value = value
        return float((value * 2).sum())

    def scale(self, value):
        return value * 2

    @classmethod
    def both(cls, factor, value):
        kept.append(value)
        return float((value * factor).sum())

class Keeper:
    __array_ufunc__ = None

    def __radd__(self, value):
        kept.append(value)
        return 1.0

    __add__ = __eq__ = __radd__

class Taker:
    def __array_ufunc__(self, function, method, *inputs, **options):
        kept.append(inputs)
        return 1.0

class Sub(np.ndarray):
    def __array_ufunc__(self, function, method, *inputs, **options):
        kept.append(inputs)
        return 1.0

@functools.lru_cache
def cached(n):
    return np.ones(n)

def note(value):
    kept.append(locals())

def generated(n):
    x = np.ones(n)
    yield float(x.sum())
    a = np.ones(n)
    yield float((a + 1.0).sum())

def below(depth):
    x = np.ones(N)
    total = float(x.sum())
    return total if depth == 0 else total + below(depth - 1)

node = Node(None)
node.matrix = np.ones((N, 2))
store = Store()

def first_half(values):
    return values[: len(values) // 2]

def scaled(x, factor):
    made = x * factor
    return made + 1

def remember(value):
    kept.append(value)

def keep_it(value):
    kept.append(value)
    return float((value * 2).sum())

def keep_second(first, second):
    kept.append(second)
    return float((second * first).sum())

def scaled_by_two(value):
    return float((value * 2).sum())

chosen = scaled_by_two

def fail(value):
    if value[0] == 1.0:
        raise ValueError(float((value * 2).sum()))

def tried(value):
    total = float((value * 2).sum())
    try:
        raise ValueError(total)
    except ValueError as error:
        kept.append(error)
    return total

def tried_by_raising(value):
    try:
        return float((value * 2).sum())
    except ValueError as error:
        raise RuntimeError("no sum") from error

def twice(values):
    return values * 2

def combine(first, second):
    return first + second

def wrapped(value):
    return [value]

def stacked(values):
    return np.stack(values)

def called(function, value):
    return function(value)

def by_store(a_store, value):
    return a_store.scale(value)

def through(loaded, k):
    return loaded(k)

FORMULAS = {"twice": "x * 2"}

def computed(text):
    return eval(text, globals(), sys._getframe(1).f_locals)

class Loader:
    def __init__(self):
        self.load = functools.lru_cache(maxsize=None)(self.load)

    def load(self, k):
        return np.ones(N) * (k + 1)

loader = Loader()
results = [None]

def end():
    global results
    results = np.zeros(1)

objects = np.empty(1, object)

def loaded(k):
    return np.ones(N) * (k + 1)

def made_once(n):
    return np.ones(n)

made_once = functools.lru_cache(made_once)
loaded_once = functools.lru_cache(loaded)

def joined(k):
    half = np.ones(N // 2)
    other = half + k
    return np.concatenate([half, other])
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


def assert_peaks_are_as_said(folder: Path, text: str) -> None:
    """Check that it is advised to delete `x`, and what each such advice says of the peak."""
    peak = peak_of(folder / "program.py", text)
    told = {name: (line, after_block, advice) for name, line, after_block, advice in deletions(peak)}
    assert "x" in told
    for number, (name, (line, after_block, advice)) in enumerate(told.items()):
        after = peak_of(folder / f"program_{number}.py", deleted(text, name, line, after_block=after_block))
        assert after.nbytes == pytest.approx(advice.peak_nbytes, rel=0.02)


@pytest.mark.parametrize("use", KEPT.values(), ids=list(KEPT))
def test_nothing_is_said_of_a_variable_whose_value_is_kept(tmp_path: Path, use: str) -> None:
    peak = peak_of(tmp_path / "kept.py", HELPERS + PROGRAM.format(use=use))
    assert [name for name, *_ in deletions(peak) if name == "x"] == []
    assert peak.nbytes >= 4 * 8 * N


@pytest.mark.parametrize("use", FREE.values(), ids=list(FREE))
def test_the_peak_is_what_was_said_where_it_is_used_up(tmp_path: Path, use: str) -> None:
    assert_peaks_are_as_said(tmp_path, HELPERS + PROGRAM.format(use=use))


NOT_TO_BE_DELETED = {
    "kept by a cache": "x = cached(N)\n    s = float(x.sum())",
    "perhaps unbound, by a condition": "if s == 0.0:\n        x = np.ones(N)\n    s = float(x.sum())",
    "perhaps unbound, in an expression": "if s == 0.0:\n        x = np.ones(N)\n    s = float(x.sum()) if N else 0.0",
    "perhaps unbound, by a loop": "for _ in range(1):\n        x = np.ones(N)\n    s = float(x.sum())",
    "perhaps unbound, by an exception": (
        "try:\n        x = np.ones(N)\n    except ValueError:\n        pass\n    s = float(x.sum())"
    ),
    "perhaps unbound, behind a context": (
        "with contextlib.suppress(ValueError):\n        x = np.ones(N)\n    s = float(x.sum())"
    ),
    "deleted later": "x = np.ones(N)\n    s = float(x.sum())\n    v = np.ones(N)\n    del x",
    "perhaps deleted later": (
        "x = np.ones(N)\n    s = float(x.sum())\n    v = np.ones(N)\n    if s > 5:\n        del x"
    ),
    "in a loop that goes on before": (
        "for k in range(2):\n        x = np.ones(N)\n        if k:\n            continue\n        s += float(x.sum())"
    ),
    "kept by a global cache under the name of its function": "x = made_once(N)\n    s = float(x.sum())",
    "kept by a cache under the name of its function": (
        "def made(n):\n        return np.ones(n)\n\n    made = functools.lru_cache(made)\n    x = made(N)\n"
        "    s = float(x.sum())"
    ),
    "kept by a cache in an attribute": "x = loader.load(1)\n    s = float(x.sum())",
    "kept by a cache that is an argument": "x = through(loaded_once, 1)\n    s = float(x.sum())",
    "on the line of its block": "if s == 0.0: x = np.ones(N); s += float(x.sum())\n    a = np.ones(N)",
    "on the line of its loop": "for _ in range(1): x = np.ones(N); s += float(x.sum())\n    a = np.ones(N)",
    "before an exception passes": (
        "try:\n        x = np.ones(N)\n        fail(x)\n    except ValueError:\n        s += 1.0"
    ),
    "before an exception passes that a context catches": (
        "with contextlib.suppress(ValueError):\n        x = np.ones(N)\n        fail(x)"
    ),
    "read by a text": (
        "x = np.ones(N)\n    s = float(x.sum())\n    v = np.ones(N)\n    s += float(computed('x * 2')[0])"
    ),
    "read by a text of the module": (
        "x = np.ones(N)\n    s = float(x.sum())\n    v = np.ones(N)\n    s += float(computed(FORMULAS['twice'])[0])"
    ),
    "read by a text with a number": (
        "x = np.ones(N)\n    s = float(x.sum())\n    v = np.ones(N)\n    s += float(computed('x * %.1f' % 2)[0])"
    ),
    "read by a text with a value": (
        "x = np.ones(N)\n    s = float(x.sum())\n    v = np.ones(N)\n    s += float(computed(f'x * {v[0]}')[0])"
    ),
    "given to several functions that a function around names": (
        "for f in (scaled_by_two, kept.append):\n        def inner():\n            x = np.ones(N)\n            f(x)\n"
        "            a = np.ones(N)\n            b = a + 1.0\n            c = b * 2.0\n            kept.clear()\n"
        "            return float(c.sum())\n        s += inner()"
    ),
    "bound by a handler": (
        "x = np.ones(N)\n    try:\n        s = float(x.sum())\n    except ValueError as x:\n        pass"
    ),
    "of a generator": "s = sum(generated(N))",
    "of a function that calls itself": "s = below(2)",
    "perhaps unbound, behind a loop": (
        "for k in range(2):\n        if k:\n            x = x * 0.5\n        else:\n            x = np.ones(N)"
    ),
    "used by another turn of a loop around it": (
        "for k in range(2):\n        s += 0.0 if k == 0 else float(x[0])\n        x = np.ones(N)\n"
        "        for _ in range(2):\n            x = x * 0.5\n        s += float(np.ones(N).sum())"
    ),
    "used by the condition of a loop around it": (
        "x = np.ones(N)\n    while x[0] > 0.4:\n        x = table[0] * np.ones(N)\n        for k in range(2):\n"
        "            x = x * 0.5\n        s += float(np.ones(N).sum())"
    ),
    "kept in a list by a loop": "x = np.ones(N)\n    for k in range(2):\n        x = x * 0.5\n        kept.append(x)",
    "kept under another name by a loop": (
        "x = np.ones(N)\n    for k in range(2):\n        y = x\n        x = x * 0.5\n    x = y"
    ),
    "bound by a loop": "x = np.ones(N)\n    for x in (x, x * 2.0):\n        s += float(x[0])",
}


@pytest.mark.parametrize("made", NOT_TO_BE_DELETED.values(), ids=list(NOT_TO_BE_DELETED))
def test_nothing_is_said_of_a_variable_that_cannot_be_deleted_there(tmp_path: Path, made: str) -> None:
    program = f"""
import contextlib

def step():
    s = 0.0
    {made}
    a = np.ones(N)
    b = a + 1.0
    c = b * 2.0
    return s + float(c.sum())
"""
    peak = peak_of(tmp_path / "program.py", HELPERS + program)
    assert [name for name, *_ in deletions(peak) if name == "x"] == []


IN_A_LOOP = {
    "by a function": "x = np.ones(N)",
    "by an operator": "x = table * k",
    "by a helper": "x = loaded(k)",
    "by a helper that has arrays of its own": "x = joined(k)",
    "by several operations": "x = np.concatenate([np.ones(N // 2), np.ones(N // 2) * k])",
    "with an array before it": "y = np.ones(N)\n        x = y * k",
    "in a block": "with np.errstate(all='ignore'):\n            x = np.ones(N) / 2.0",
}


@pytest.mark.parametrize("made", IN_A_LOOP.values(), ids=list(IN_A_LOOP))
def test_what_the_turn_before_made_is_told_while_the_next_is_made(tmp_path: Path, made: str) -> None:
    program = f"""
def step():
    s = 1.0
    for k in range(3):
        {made}
        s += float(x.sum())
    return s
"""
    assert_peaks_are_as_said(tmp_path, HELPERS.replace("np.ones(3)", "np.ones(N)") + program)


HANDED_ON = {
    "and used behind the loop": "for k in range(3):\n        x = x * 0.5\n    s = float(x.sum())",
    "and not used behind the loop": "for k in range(3):\n        x = x * 0.5\n        s += float(x[0])",
    "in two steps": "for k in range(3):\n        x = x + 1.0\n        x = np.tanh(x)\n    s = float(x.sum())",
    "by a helper": "for k in range(3):\n        x = scaled(x, 0.5)\n    s = float(x.sum())",
    "perhaps": "for k in range(3):\n        if k:\n            x = x * 0.5\n    s = float(x.sum())",
    "or left": "for k in range(3):\n        x = x * 0.5\n        if k:\n            break\n    s = float(x.sum())",
    "while a condition holds": "while s < 2:\n        x = x * 0.5\n        s += 1.0\n    s = float(x.sum())",
    "while its own condition holds": "while x[0] > 0.1:\n        x = x * 0.5\n    s = float(x.sum())",
    "by two loops": ("for _ in range(2):\n        for k in range(2):\n            x = x * 0.5\n    s = float(x.sum())"),
    "by two loops, and used by the outer one": (
        "for _ in range(2):\n        s += float(x[0])\n        for k in range(2):\n            x = x * 0.5\n"
        "        y = np.ones(N)\n        s += float((y + 1.0).sum())"
    ),
    "in each turn of another loop": (
        "for _ in range(2):\n        x = table * 2.0\n        for k in range(2):\n            x = x * 0.5\n"
        "        s += float(x.sum())\n        y = np.ones(N)\n        s += float((y + 1.0).sum())"
    ),
    "in each turn of another loop, where it has another name before": (
        "y = table * 2.0\n    for _ in range(2):\n        x = y\n        for k in range(2):\n            x = x * 0.5\n"
        "        s += float(x.sum())\n        z = np.ones(N)\n        s += float((z + 1.0).sum())"
    ),
}


@pytest.mark.parametrize("made", HANDED_ON.values(), ids=list(HANDED_ON))
def test_a_value_that_each_turn_hands_on_is_to_be_deleted_behind_the_loop(tmp_path: Path, made: str) -> None:
    program = f"""
def step():
    s = 0.0
    x = table * 2.0
    {made}
    a = np.ones(N)
    b = a + 1.0
    c = b * 2.0
    return s + 1.0 + float(c.sum())
"""
    assert_peaks_are_as_said(tmp_path, HELPERS.replace("np.ones(3)", "np.ones(N)") + program)


def test_a_parameter_that_each_turn_hands_on_is_to_be_deleted_behind_the_loop(tmp_path: Path) -> None:
    program = """
def forward(x):
    for k in range(3):
        x = x * 0.5
    s = float(x.sum())
    a = np.ones(N)
    b = a + 1.0
    return s + float((b * 2.0).sum())

def step():
    return forward(np.ones(1) * np.ones(N))
"""
    assert_peaks_are_as_said(tmp_path, HELPERS + program)


def test_a_use_in_a_loop_that_ends_with_a_condition_counts_for_the_whole_loop(tmp_path: Path) -> None:
    program = """
def step():
    s = 0.0
    x = np.ones(N)
    y = scaled(x, 2.0)
    for k in range(2):
        s += float(x.sum())
        if s > 1e9:
            s += float(x.sum())
            x += 1.0
            s += float(x[0])
    z = np.ones(N // 20)
    return s + float((y + 0.5).sum()) + float(z.sum())
"""
    peak = peak_of(tmp_path / "program.py", HELPERS + program)
    last = 1 + (HELPERS + program).split("\n").index("            s += float(x[0])")
    assert [line for name, line, *_ in deletions(peak) if name == "x"] == [last]


IN_PLACE = {
    "a function": ("h = np.tanh(h)", "np.tanh(h, out=h)"),
    "an operator": ("h = h * 2.0", "h *= 2.0"),
    "a quotient": ("h = h / h.max()", "h /= h.max()"),
    "a sum with a row": ("h = h + bias", "h += bias"),
    "another variable": ("g = h - 1.0\n    h = None", "h -= 1.0\n    g = h\n    h = None"),
    "a variable that lives on": ("g = np.tanh(h)", "g = np.tanh(h, out=h)"),
    "a variable of each turn": (
        "for k in range(3):\n        g = h - k\n        t = g / 2.0\n        s = float(t[0, 0])",
        "for k in range(3):\n        g = h - k\n        t = np.divide(g, 2.0, out=g)\n        s = float(t[0, 0])",
    ),
}


@pytest.mark.parametrize(("made", "changed"), IN_PLACE.values(), ids=list(IN_PLACE))
def test_an_operation_in_place_has_the_peak_that_was_said(tmp_path: Path, made: str, changed: str) -> None:
    program = """
def step():
    bias = np.ones(300)
    w = np.ones((300, 300))
    h = w * 3.0
    {made}
    del w
    return float(bias.sum())
"""
    peak = peak_of(tmp_path / "program.py", HELPERS + program.format(made=made))
    [advice] = [each for each in peak.advice if each.text.startswith("in place")]
    after = peak_of(tmp_path / "after.py", HELPERS + program.format(made=changed))
    assert after.nbytes == pytest.approx(advice.peak_nbytes, rel=0.02)


OUTLIVES = {
    "a temporary": ("t = float(np.sqrt(x + 1.0)[0])", "x += 1.0\n        t = float(np.sqrt(x)[0])"),
    "a variable": (
        "y = np.sqrt(x)\n        z = np.cos(y)\n        t = float(z[0])\n        del y, z",
        "y = np.sqrt(x, out=x)\n        z = np.cos(y)\n        t = float(z[0])\n        del y, z",
    ),
}


@pytest.mark.parametrize(("made", "changed"), OUTLIVES.values(), ids=list(OUTLIVES))
@pytest.mark.parametrize("turns", [1, 3])
def test_nothing_is_to_be_written_over_what_lives_on_to_the_peak(
    tmp_path: Path, made: str, changed: str, turns: int
) -> None:
    program = f"""
def step():
    total = 0.0
    for k in range({turns}):
        x = np.full(N, k + 1.0)
        {{made}}
        b = np.ones(N)
        c = np.exp(b)
        total += abs(t) + float(c[0])
        del c, b
    return total
"""
    peak = peak_of(tmp_path / "program.py", HELPERS + program.format(made=made))
    assert texts(peak, "in place", "(over x)") == []
    after = peak_of(tmp_path / "after.py", HELPERS + program.format(made=changed))
    assert after.nbytes == pytest.approx(peak.nbytes, rel=0.02)


def test_a_result_is_to_be_written_over_the_operand_that_lives_to_the_peak(tmp_path: Path) -> None:
    program = """
def step():
    x = np.ones(N)
    z = np.full(N, 2.0)
    {made}
    del x
    c = np.exp(y)
    d = np.cosh(c / 8.0)
    return float(y[0]) + float(c[0]) + float(d[0])
"""
    peak = peak_of(tmp_path / "program.py", HELPERS + program.format(made="y = x * z"))
    line = 1 + (HELPERS + program).split("\n").index("    {made}")
    [advice] = [each for each in peak.advice if each.text.startswith("in place") and f":{line} " in each.text]
    assert advice.text.endswith("(over z)")
    after = peak_of(tmp_path / "after.py", HELPERS + program.format(made="y = np.multiply(x, z, out=z)"))
    assert after.nbytes == pytest.approx(advice.peak_nbytes, rel=0.02)


STILL_NEEDED = {
    "by an operator": "z = np.ones(N) * 3.0\n    g = np.tanh(z)\n    g += z\n    return float(g[0])",
    "by an index": "z = np.ones(N) * 3.0\n    g = np.tanh(z)\n    return float(g[0]) + z.item(0)",
    "in a text": "z = np.ones(N) * 3.0\n    g = np.tanh(z)\n    return float(g[0]) + len(f'{z[0]}')",
    "by a view": "z = np.ones(N) * 3.0\n    v = z[:2]\n    g = np.tanh(z)\n    return float(g[0]) + v.item(0)",
    "by the next round": (
        "z = np.ones(N) * 3.0\n    g = z\n    for _ in range(2):\n        g = np.tanh(z)\n    return float(g[0])"
    ),
    "by the caller": "g = scaled_once(table_of_n)\n    h = scaled_once(np.ones(N))\n    return float(g[0] + h[0])",
    "backwards, by another name": (
        "a = np.ones(N) * 3.0\n    r = a[::-1]\n    g = a - r + 1.0\n    return 1.0 + g.item(0)"
    ),
    "as its own kind": "z = np.arange(N)\n    g = np.sqrt(z)\n    return float(g[1])",
    "as whole numbers": "z = np.arange(N) + 1\n    z = z / N\n    return float(z[1])",
    "as it cannot be written": (
        "z = np.ones(N) * 3.0\n    z.flags.writeable = False\n    z = np.tanh(z)\n    return float(z[1])"
    ),
    "as bytes": "z = np.ones(N, np.uint8)\n    g = np.greater(z, 0)\n    return float(z[g][0])",
    "as times": "z = np.ones(N, 'm8[s]')\n    g = z / np.timedelta64(1, 's')\n    return float(g[1])",
    "with its own shape": "z = np.ones(N) * 3.0\n    g = z + np.ones((1, 1))\n    return float(g[0, 1])",
}


@pytest.mark.parametrize("body", STILL_NEEDED.values(), ids=list(STILL_NEEDED))
def test_nothing_is_written_over_what_is_needed(tmp_path: Path, body: str) -> None:
    program = f"""
table_of_n = np.ones(N)

def scaled_once(values):
    return values * 0.5

def work():
    {body}

def step():
    total = work()
    return total + float(np.ones(10).sum())
"""
    peak = peak_of(tmp_path / "program.py", HELPERS + program)
    assert texts(peak, "in place") == []


@pytest.mark.parametrize(("made", "over"), [("np.exp(-b)", "a temporary"), ("np.exp(b)", "b")])
def test_advice_says_what_the_result_is_written_over(tmp_path: Path, made: str, over: str) -> None:
    program = f"""
def step():
    a = np.ones(N)
    b = a * 2.0
    d = {made}
    return float(d.sum()) + float(a[0])
"""
    peak = peak_of(tmp_path / "program.py", HELPERS + program)
    line = 1 + (HELPERS + program).split("\n").index(f"    d = {made}")
    assert len(texts(peak, "in place", f":{line} (over {over})")) == 1


def test_nothing_is_written_over_what_has_another_name_at_times(tmp_path: Path) -> None:
    program = """
def step():
    total = 0.0
    for k in range(3):
        a = np.full(N, float(k))
        try:
            b = a * 2.0
            if k == 1:
                raise KeyError
        except KeyError:
            b = a
        d = np.exp(-b)
        e = d * 2.0
        total += float(e.sum()) + float(a[0])
    return total
"""
    peak = peak_of(tmp_path / "program.py", HELPERS + program)
    assert {each.rpartition(" (")[2] for each in texts(peak, "in place")} <= {"over a temporary)", "over d)"}


NOT_IN_PLACE = {
    "a product of matrices": "h = np.matmul(h, w)",
    "another view of the operand": "h = h + h.T",
    "the operand backwards": "h = h + h[::-1]",
    "a choice": "h = np.exp(h)[np.arange(300)]",
    "whole numbers": "h = np.arange(N) * 0.5",
    "whole numbers of a matrix": "h = np.identity(300, int) * 0.5",
    "whole numbers of a matrix, by position": "h = np.eye(300, 300, 0, int) / 2.0",
    "whole numbers of a range, by position": "h = np.arange(0.0, N, 1.0, int) / 3.0",
    "whole numbers of an array that is full, by position": "h = np.full(N, 1.0, int) / 3.0",
    "the bits of the operand": "h = (h.view('u8') | 255) / 2.0",
    "the bits of the operand as whole numbers": "h = (h.view('i8') + 1) * 0.5",
    "a product that is no ufunc": "h = np.dot(h, w)",
    "an array with more dimensions": "h = h * np.ones(wide.shape)",
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
    assert [each for each in texts(peak, "in place") if f":{line} (" in each] == []


NOT_MADE_AGAIN = {
    "by chance": "gate = np.random.default_rng(1).random(N)",
    "of what changes": "gate = base * 2.0\n    base = np.ones(3)",
    "and filled": "gate = np.zeros(N)\n    gate[0] = 1.0",
    "by several operations": "gate = (base * 2.0 + 1.0) * 3.0",
    "of what is filled": "gate = base * 2.0\n    base.fill(0.0)",
    "of what is changed by position": "gate = base * 2.0\n    np.add(base, 3.0, base)",
    "of what has another name": "alias = base\n    gate = base * 2.0\n    alias += 5.0",
    "of what a function changes": "gate = base * 2.0\n    refill(base)",
    "of an attribute that is bound anew": "gate = worker.w * 2.0\n    worker.forward()",
    "of a global variable that is bound anew": "gate = scale * np.ones(N)\n    change_scale()",
    "of the array of a module": "gate = shared * 2.0\n    change_shared()",
    "of what a file has": "gate = np.fromfile(file)",
    "by a function of the program's": "gate = drawn(N)",
    "by an object of the program's": "gate = worker.load()",
    "and changed by a function of NumPy": "gate = base * 2.0\n    np.copyto(gate, 7.0)",
    "and changed by a function of the program's": "gate = np.ones(N)\n    refill(gate)",
    "and doubled by a function of the program's": "gate = np.ones(N)\n    double(gate)",
    "and sorted": "gate = base * 2.0\n    gate.sort()",
    "in a block that is left": "with np.errstate(divide='ignore'):\n        gate = 1.0 / base",
    "of a view of what is changed": "view = base[:]\n    gate = view * 2.0\n    base *= 3.0",
    "of another name of what is filled": "same = base\n    gate = same * 2.0\n    base[:] = 3.0",
    "of another shape of what is filled": "pairs = base.reshape(-1, 2)\n    gate = pairs * 2.0\n    base[:] = 3.0",
    "of what is changed the other way round": "t = base.T\n    gate = np.sqrt(t)\n    np.add(base, 3.0, out=base)",
    "of a row of what is filled": "rows = np.ones((2, N))\n    row = rows[1]\n    gate = row * 2.0\n    rows[1] = 3.0",
    "of a view of the array of a module": "view = shared[::2]\n    gate = view * 2.0\n    change_shared()",
    "of one of two names": "one = other = np.ones(N)\n    gate = one * 2.0\n    other += 1.0",
    "of what a median sorts": "gate = base * 2.0\n    v = np.median(base, overwrite_input=True)",
    "of an attribute of a class": "gate = np.full(SIZE, Worker.scale)\n    Worker.scale = 3.0",
    "of an attribute that a function sets": "gate = np.full(SIZE, Worker.scale)\n    change_attributes()",
    "of an attribute of a module": "gate = np.full(SIZE, settings.scale)\n    settings.scale = 3.0",
    "of a type that is an attribute": "gate = np.ones(SIZE, dtype=Worker.kind)\n    change_attributes()",
    "of a global variable that is set by its name": "gate = np.full(SIZE, unit)\n    change_unit()",
    "of the size of what is bound anew": "part = base\n    gate = np.ones(part.size)\n    part = np.ones(3)",
}


@pytest.mark.parametrize("made", NOT_MADE_AGAIN.values(), ids=list(NOT_MADE_AGAIN))
def test_nothing_is_made_again_that_would_be_another(tmp_path: Path, made: str) -> None:
    program = f"""
import tempfile
import types

settings = types.ModuleType("settings")
settings.scale = 2.0
scale = 1.0
unit = 1.0
SIZE = 100_000
shared = np.ones(N)
file = tempfile.TemporaryFile()
np.ones(4 * N).tofile(file)

class Worker:
    scale = 2.0
    kind = "f8"

    def __init__(self):
        self.w = np.ones(N)

    def forward(self):
        self.w = self.w + 1.0

    def load(self):
        return np.ones(N)

worker = Worker()

def refill(values):
    values[:] = 5.0

def double(values):
    values *= 2.0

def change_scale():
    global scale
    scale = scale + 1.0

def change_shared():
    shared[:] = shared + 1.0

def change_unit():
    setattr(sys.modules["program"], "unit", 3.0)

def change_attributes():
    Worker.scale *= 0.5
    Worker.kind = "f4"

def drawn(n):
    return np.random.rand(n)

def step():
    file.seek(0)
    base = np.ones(N)
    {made}
    total = float(gate[:1000].sum())
    a = np.ones(2 * N)
    b = a * 2.0
    total += float(b.sum())
    del a, b
    return total + float((gate * 3.0).sum())
"""
    peak = peak_of(tmp_path / "program.py", HELPERS + program)
    assert texts(peak, "recompute") == []


# What makes `gate`, what is between its uses, and whether it can be made again.
PARAMETERS = {
    "a number": ("np.ones(count)", "total += float(np.sum(box))", True),
    "a number of the module": ("np.full(SIZE, unit)", "pass", True),
    "an array of its own": ("own * 2.0", "fill(box)", True),
    "numbers that are written": ("np.linspace(0.0, 1.0, 100_000)", "fill(box)", True),
    "what a loop does not change": ("np.ones(count)", "for k in range(3):\n        total += 1.0 * k", True),
    "an array that has another name": ("np.full(SIZE, value)", "box[0] = 9.0", False),
    "an array that an operator changes": ("np.full(SIZE, value)", "box += 9.0", False),
    "an array that a function changes": ("np.full(SIZE, value)", "fill(box)", False),
    "an array that a method changes": ("np.full(SIZE, value)", "box.fill(9.0)", False),
    "an array that is written to": ("np.full(SIZE, value)", "np.add(box, 9.0, out=box)", False),
    "an array that a loop changes": ("np.full(SIZE, value)", "for each in changes(box):\n        total += 1.0", False),
}


@pytest.mark.parametrize(("made", "between", "is_same"), PARAMETERS.values(), ids=list(PARAMETERS))
def test_what_is_made_of_a_parameter_is_made_again_where_nothing_changes_that(
    tmp_path: Path, made: str, between: str, is_same: bool
) -> None:
    program = f"""
SIZE = 100_000
unit = 2.0

def fill(values):
    values[:] = 9.0

def changes(values):
    yield fill(values)

def work(value, box, count):
    own = np.ones(N)
    gate = {made}
    total = float(gate.sum())
    {between}
    a = np.ones(2 * N)
    b = a * 2.0
    total += float(b.sum())
    del a, b
    return total + float((gate * 3.0).sum())

def step():
    one = np.ones(1)
    return work(one, one, SIZE)
"""
    peak = peak_of(tmp_path / "program.py", HELPERS + program)
    assert len(texts(peak, "recompute gate")) == is_same


SUBCLASSES = {
    "its own": "class Keep(Keeping, np.ndarray):\n    __array_finalize__ = Keeping.__array_finalize__",
    "a mixin's": "class Keep(Keeping, np.ndarray):\n    pass",
    "that of a mixin's base": "class More(Keeping):\n    pass\n\nclass Keep(More, np.ndarray):\n    pass",
    "a mixin's in a subclass of a subclass": (
        "class Plain(np.ndarray):\n    pass\n\nclass Keep(Keeping, Plain):\n    pass"
    ),
}


@pytest.mark.parametrize("subclass", SUBCLASSES.values(), ids=list(SUBCLASSES))
def test_nothing_is_to_be_deleted_that_a_subclass_may_keep(tmp_path: Path, subclass: str) -> None:
    program = f"""
import numpy as np
import disposescope as ds

N = {N}

class Keeping:
    seen = []

    def __array_finalize__(self, source):
        Keep.seen.append(source)

{subclass}

def step():
    x = np.linspace(0.0, 1.0, N).view(Keep)
    y = x * 2.0
    z = np.add(y, 1.0)
    total = float(z.sum())
    a = np.ones(2 * N)
    b = a + 1.0
    Keep.seen.clear()
    return total + float(b.sum())

workspace = ds.Workspace("program")
with workspace.run():
    step()
print(workspace.peak())
"""
    file = tmp_path / "program.py"
    file.write_text(program, encoding="utf-8")
    # In another process: the class stays among the subclasses of `numpy.ndarray`.
    told = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True).stdout
    assert "peak 5.6 MB" in told
    assert "del " not in told


def test_a_global_variable_that_a_function_reads_is_left_alone(tmp_path: Path) -> None:
    program = """
table = np.ones(N)

def step():
    return float(table.sum()) + float((np.ones(N) * 2 + 1).sum())
"""
    peak = peak_of(tmp_path / "program.py", HELPERS + program)
    assert [name for name, *_ in deletions(peak) if name == "table"] == []


def test_a_function_whose_variables_are_made_of_one_another_has_advice(tmp_path: Path) -> None:
    lines = ["x0 = np.ones(N)", "x1 = x0 * 2", *(f"x{n} = x{n - 1} + x{n - 2} * 2" for n in range(2, 60))]
    program = "\n    ".join(["\ndef step():", *lines, "return float(x59.sum())\n"])
    peak = peak_of(tmp_path / "program.py", HELPERS + program)
    assert {name for name, *_ in deletions(peak)} >= {"x1", "x20"}


HARD_TO_READ = {
    "a copy by name": ("", "np.copyto(dst=table, src=x[:3])"),
    "no PyTorch": ("sys.modules['torch'] = None", "v = np.zeros(N) + x"),
    "an odd class": (
        "class Odd:\n    __module__ = property(lambda self: 'x')\n    def __call__(self, x):\n        return 1\n\n"
        "odd = Odd()",
        "v = odd(x)",
    ),
    "a warning of the compiler": ("def unused(a):\n    return a is 1", "v = x * 2"),
}


@pytest.mark.parametrize(("before", "use"), HARD_TO_READ.values(), ids=list(HARD_TO_READ))
@pytest.mark.filterwarnings("ignore:.*is.* with .*literal:SyntaxWarning")
def test_the_peak_is_told_whatever_the_source_has(
    tmp_path: Path, before: str, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "torch" in sys.modules:
        monkeypatch.setitem(sys.modules, "torch", sys.modules["torch"])
    peak = peak_of(tmp_path / "program.py", HELPERS + before + PROGRAM.format(use=use))
    assert peak.nbytes >= 3 * 8 * N


def test_a_value_is_followed_into_a_function_that_calls_itself_in_many_places(tmp_path: Path) -> None:
    calls = " + ".join(["walk(value, depth - 1)"] * 12)
    program = f"""
def walk(value, depth):
    if depth <= 0:
        return float((value * 2).sum())
    return {calls}

def step():
    x = np.ones(N)
    v = walk(x, 1)
    a = np.ones(N)
    b = a + 1.0
    c = b * 2.0
    return v + float(c.sum())
"""
    peak = peak_of(tmp_path / "program.py", HELPERS + program)
    assert peak.nbytes >= 4 * 8 * N
    assert [name for name, *_ in deletions(peak) if name == "a"] == ["a"]


def test_nothing_is_said_of_code_without_source() -> None:
    names: dict[str, Any] = {"np": np, "N": N}
    exec(compile(PROGRAM.format(use="v = x * 2"), "<nowhere>", "exec"), names)
    workspace = ds.Workspace("nowhere")
    with workspace.run():
        names["step"]()
    assert workspace.peak().advice == ()
