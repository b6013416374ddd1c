"""What a workspace advises, written into random programs: nothing breaks, and the peak is as said.

::

    python -m tests.stress.advice --rounds 200 --seed 0
    python -m tests.stress.advice --only torch --rounds 50 --folder found

Each round writes a program (see `advice_programs`) and runs it, in a child process. Each piece of
advice of its workspace is then written into the text as a person would do it, and the program is
run again. It must compute what it computed before, and the peak must be within 2 % of what was
said. A program with a finding is made shorter, a statement at a time, as long as it has a finding
of the same kind. With ``--missing``, each variable is also deleted behind its last use where that
was not advised, to see which advice is missing.

The status is 1 if there are findings.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import linecache
import math
import os
import random
import re
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

import disposescope as ds

from .advice_programs import LIBRARIES, Library, program
from .run import has, torch

_SECONDS: Final = 60
"""A program that takes more CPU time hangs."""
_TOLERANCE: Final = 0.02
_WORTH: Final = 0.05
"""Advice is missing only where it would save this part of the peak."""
_DELETE: Final = re.compile(r"del (\w+) after (the .* that ends at )?.*:(\d+)")
_IN_PLACE: Final = re.compile(r"in place at .*:(\d+) \(over (.*)\)")
_RECOMPUTE: Final = re.compile(r"recompute (\w+) before .*:(\d+) \(checkpoint\)")
_IN_PLACE_BY_OPERATOR: Final = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.Pow: "power",
}
_IN_PLACE_HELPER: Final = "\n\ndef _in_place(f, n, *v):\n    return f(*v, out=v[n])\n"
"""Calls a function with ``out=``. It comes behind the functions of the program."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a program.

    Attributes
    ----------
    error : str
        The exception that ended it, ``""`` for none.
    results : list
        What it computed, a list of numbers and texts for each pass.
    peaks : list of int
        The peak of the passes of each key.
    advice : list of (int, str, int)
        What its workspace advised: for which key, what, and which peak it said.
    """

    error: str
    results: list[Any]
    peaks: list[int]
    advice: list[tuple[int, str, int]]


@dataclass(frozen=True, slots=True)
class Finding:
    """Advice that is wrong, or missing.

    Attributes
    ----------
    kind : str
        What is wrong: findings of one kind are not told apart when a program is made shorter.
    advice : str
        The advice.
    told : str
        What happened when it was followed.
    """

    kind: str
    advice: str
    told: str

    def __str__(self) -> str:
        return f"[{self.kind}] {self.advice}\n    {self.told}"


# ------------------------------------------------------------------ running a program


def outcome_of(text: str, folder: Path) -> Outcome:
    """Run a program in a child process."""
    file = folder / "train.py"
    file.write_text(text, encoding="utf-8")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)
        signal.alarm(10 * _SECONDS)
        try:
            told = _outcome_here(text, file)
        except BaseException:
            told = {"error": "fuzzer: " + traceback.format_exc(), "results": [], "peaks": [], "advice": []}
        with os.fdopen(writer, "w", encoding="utf-8") as pipe:
            pipe.write(json.dumps(told))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        told_text = pipe.read()
    _, status = os.waitpid(child, 0)
    if not told_text:
        return Outcome(f"crash: status {status}", [], [], [])
    told = json.loads(told_text)
    return Outcome(**told)


def _outcome_here(text: str, file: Path) -> dict[str, Any]:
    """Run a program in this process, as the main program or as a module."""
    warnings.simplefilter("ignore")
    role = "__main__" if text.startswith("# runs as __main__") else "program"
    sys.modules[role] = module = ModuleType(role)
    module.__file__ = str(file)
    linecache.checkcache(str(file))
    told: dict[str, Any] = {"error": "", "results": [], "peaks": [], "advice": []}
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(text, str(file), "exec"), vars(module))
    except BaseException as error:
        line = next(
            (each.lineno for each in traceback.extract_tb(error.__traceback__)[::-1] if "train.py" in each[0]), 0
        )
        told["error"] = f"{type(error).__name__}: {error} (line {line})"
        return told
    told["results"] = json.loads(json.dumps(vars(module)["RESULTS"]))
    keys = range(3) if "key=TURN" in text else [None]
    try:
        peaks = [vars(module)["workspace"].peak(key) for key in keys]
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        told["error"] = f"peak() raised {type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        return told
    told["peaks"] = [each.nbytes for each in peaks]
    told["advice"] = [
        (number, each.text, each.peak_nbytes) for number, peak in enumerate(peaks) for each in peak.advice
    ]
    return told


def are_same(one: Any, other: Any) -> bool:
    """Return whether two results are equal, but for rounding."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(are_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-7)
    return bool(one == other)


# ------------------------------------------------------------------ writing advice into a program


def followed(text: str, advice: str) -> list[str]:
    """Return the texts of a program with a piece of advice written in, each as one may read it."""
    if (found := _DELETE.fullmatch(advice)) is not None:
        return deleted(text, found[1], int(found[3]), after_block=found[2] is not None)
    if (found := _IN_PLACE.fullmatch(advice)) is not None:
        return list(_in_place(text, int(found[1]), found[2]))
    if (found := _RECOMPUTE.fullmatch(advice)) is not None:
        return _recomputed(text, found[1], int(found[2]))
    return []


def deleted(text: str, name: str, line: int, *, after_block: bool) -> list[str]:
    """Return a program with a ``del`` behind the statement that ends at a line.

    That is the outermost one with a block, or else the innermost one.
    """
    ends = [
        each
        for each in ast.walk(ast.parse(text))
        if isinstance(each, ast.stmt)
        and each.end_lineno == line
        and not isinstance(each, (ast.FunctionDef, ast.ClassDef))
    ]
    # Not the loop of the passes, whose variables the advice is about.
    blocks = [each for each in ends if _is_block(each) and _reads_or_binds(each, name) and not _has_passes(each)]
    chosen = blocks if after_block else [each for each in ends if not _is_block(each)]
    made: list[str] = []
    for statement in sorted(chosen, key=lambda each: each.col_offset if after_block else -each.col_offset):
        lines = text.split("\n")
        column = _column_of_line(text, statement.lineno)
        if not after_block and any(each.lineno == line for each in blocks):
            # A block of one line.
            lines[line - 1] += f"; del {name}"
        else:
            lines.insert(line, " " * column + f"del {name}")
        made.append("\n".join(lines))
    return made


def _has_passes(statement: ast.stmt) -> bool:
    return "workspace.run(" in ast.unparse(statement)


def _is_block(statement: ast.stmt) -> bool:
    return hasattr(statement, "body") or isinstance(statement, ast.Match)


def _reads_or_binds(statement: ast.stmt, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(statement))


def _column_of_line(text: str, line: int) -> int:
    whole = text.split("\n")[line - 1]
    return len(whole) - len(whole.lstrip())


def _in_place(text: str, line: int, over: str) -> Iterator[str]:
    """Yield a program with an operation of a line in place, for each that has the operand.

    The operators around it may be in place, too: NumPy writes their results there by itself.
    """
    library = "torch" if "\nimport torch\n" in text else "np"
    tree = ast.parse(text)
    parents = {child: each for each in ast.walk(tree) for child in ast.iter_child_nodes(each)}
    chosen = [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.expr)
        and each.lineno <= line <= (each.end_lineno or 0)
        and _call_of(each, library) is not None
    ]
    for node in chosen:
        call = _call_of(node, library)
        assert call is not None
        for number, operand in enumerate(call[1]):
            is_it = operand.id == over if isinstance(operand, ast.Name) else over == "a temporary"
            if isinstance(operand, ast.Constant) or not is_it:
                continue
            inner: ast.expr = node
            made = _as_call(node, number, library)
            yield _replaced(text, node, made)
            while isinstance(outer := parents.get(inner), (ast.BinOp, ast.UnaryOp)):
                known = _call_of(outer, library)
                if known is None:
                    break
                function, operands = known
                which = operands.index(inner)
                parts = [made if each is inner else ast.get_source_segment(text, each) or "" for each in operands]
                made = f"_in_place({function}, {which}, {', '.join(parts)})"
                yield _replaced(text, outer, made)
                inner = outer


def _call_of(node: ast.expr, library: str) -> tuple[str, list[ast.expr]] | None:
    """Return the function that an operation calls, and its operands; None if it is no operation."""
    if isinstance(node, ast.BinOp):
        name = _IN_PLACE_BY_OPERATOR.get(type(node.op))
        name = "pow" if library == "torch" and name == "power" else name
        return None if name is None else (f"{library}.{name}", [node.left, node.right])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return f"{library}.{'neg' if library == 'torch' else 'negative'}", [node.operand]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.keywords:
        whole = ast.unparse(node.func.value)
        return (ast.unparse(node.func), list(node.args)) if whole in ("np", "torch") and node.args else None
    is_abs = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "abs"
    return (f"{library}.abs", list(node.args)) if isinstance(node, ast.Call) and is_abs else None


def _as_call(node: ast.expr, number: int, library: str) -> str:
    known = _call_of(node, library)
    assert known is not None
    function, operands = known
    return f"_in_place({function}, {number}, {', '.join(map(ast.unparse, operands))})"


def _replaced(text: str, node: ast.expr, made: str) -> str:
    """Return a text with another expression, on the same number of lines."""
    segment = ast.get_source_segment(text, node)
    assert segment is not None
    lines = text.split("\n")
    start = sum(len(each) + 1 for each in lines[: node.lineno - 1]) + node.col_offset
    made = made.replace("\n", " ")
    changed = text[:start] + made + "\n" * segment.count("\n") + text[start + len(segment) :]
    # Before the passes, which run at once.
    head, loop, tail = re.split(r"(\nfor \w+ in range\(3\):\n    with workspace\.run)", changed, maxsplit=1)
    return head + _IN_PLACE_HELPER + loop + tail


def _recomputed(text: str, name: str, line: int) -> list[str]:
    """Return a program in which a variable is deleted behind its use before a line.

    Before that line it is made again; if the line is in a block, before the outermost one that does
    not have the first statement that makes it.
    """
    tree = ast.parse(text)
    parents = {child: each for each in ast.walk(tree) for child in ast.iter_child_nodes(each)}
    around = [each for each in ast.walk(tree) if isinstance(each, (ast.FunctionDef, ast.Module)) and _holds(each, line)]
    function = max(around, key=lambda each: getattr(each, "lineno", 0))
    bindings = [
        each
        for each in ast.walk(function)
        if isinstance(each, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in each.targets)
    ]
    loads = [
        each.lineno
        for each in ast.walk(function)
        if isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load) and each.lineno < line
    ]
    if len(bindings) != 1 or not loads:
        return []
    [binding] = bindings
    before = _statement_around(binding, max(loads), parents)
    after = _statement_around(binding, line, parents)
    if before is None or after is None:
        return []
    lines = text.split("\n")
    again = f"{name} = {ast.unparse(binding.value)}"
    lines.insert(after.lineno - 1, " " * after.col_offset + again)
    lines.insert(before.end_lineno or 0, " " * before.col_offset + f"del {name}")
    return ["\n".join(lines)]


def _statement_around(first: ast.stmt, line: int, parents: dict[ast.AST, ast.AST]) -> ast.stmt | None:
    """Return the statement with a line, in the block of a statement or in a block around that."""
    around: ast.AST = first
    while around in parents:
        for block in _blocks(parents[around]):
            if around in block:
                for each in block:
                    if each.lineno <= line <= (each.end_lineno or 0) and each is not around:
                        return each
        around = parents[around]
    return None


def _holds(node: ast.AST, line: int) -> bool:
    return not isinstance(node, ast.FunctionDef) or node.lineno <= line <= (node.end_lineno or 0)


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block
    for handler in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield handler.body


# ------------------------------------------------------------------ what is wrong


def findings_of(
    text: str, folder: Path, *, missing: bool = False, only: str | None = None
) -> tuple[Outcome, list[Finding]]:
    """Run a program, follow each piece of advice, and return what is wrong.

    Parameters
    ----------
    text : str
        The program.
    folder : Path
        Where it is written.
    missing : bool, default False
        Whether to look for advice that is missing.
    only : str, optional
        Follow only advice that begins so, to save time.
    """
    before = outcome_of(text, folder)
    if before.error:
        is_of_library = before.error.startswith(("peak()", "crash", "fuzzer"))
        return before, [Finding(before.error.split(" (")[0][:60], "none", before.error)] if is_of_library else []
    found: list[Finding] = []
    for key, advice, said in before.advice:
        if only is not None and not advice.startswith(only):
            continue
        finding = _wrong_with(text, folder, before, key, advice, said)
        if finding is not None:
            found.append(finding)
    if missing:
        found += _missing(text, folder, before)
    return before, found


def _wrong_with(text: str, folder: Path, before: Outcome, key: int, advice: str, said: int) -> Finding | None:
    """Follow a piece of advice in all ways that it may be read; None if one of them is right."""
    verb = _verb(advice)
    worst: Finding | None = None
    for changed in followed(text, advice):
        after = outcome_of(changed, folder)
        finding = _judged(verb, advice, before, after, key, said)
        if finding is None:
            return None
        if worst is None or finding.kind.endswith("bytes"):
            worst = finding
    return worst or Finding(f"{verb}: not followed", advice, "the fuzzer does not know how to follow it")


def _verb(advice: str) -> str:
    return "in place" if advice.startswith("in place") else advice.split()[0]


def _judged(verb: str, advice: str, before: Outcome, after: Outcome, key: int, said: int) -> Finding | None:
    if after.error:
        return Finding(f"{verb}: {after.error.split(':')[0]}", advice, after.error)
    if not are_same(before.results, after.results):
        return Finding(f"{verb}: results", advice, f"results {before.results} became {after.results}")
    came = after.peaks[key]
    if abs(came - said) > _TOLERANCE * said:
        told = f"peak {before.peaks[key]}, {said} was said, and {came} came"
        return Finding(f"{verb}: {'more' if came > said else 'fewer'} bytes", advice, told)
    return None


def _missing(text: str, folder: Path, before: Outcome) -> Iterator[Finding]:
    """Yield the variables that could be deleted earlier, although no advice says so."""
    named = {found[1] for _, advice, _ in before.advice if (found := _DELETE.fullmatch(advice)) is not None}
    tree = ast.parse(text)
    for function in (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)):
        for name in sorted({each.id for each in ast.walk(function) if isinstance(each, ast.Name)} - named):
            uses = [each for each in function.body if _reads_or_binds(each, name)]
            if not uses or uses[-1] is function.body[-1] or isinstance(uses[-1], ast.Return):
                continue
            lines = text.split("\n")
            line = uses[-1].end_lineno or 0
            lines.insert(line, " " * uses[-1].col_offset + f"del {name}")
            after = outcome_of("\n".join(lines), folder)
            if not after.error and are_same(before.results, after.results):
                saved = max(before.peaks) - max(after.peaks)
                if saved > _WORTH * max(before.peaks):
                    yield Finding("missing", f"del {name} after :{line}", f"would save {saved} of {max(before.peaks)}")


# ------------------------------------------------------------------ making a program shorter


def shortened(text: str, is_wrong: Callable[[str], bool], seconds: float) -> str:
    """Return a program without the statements that a finding does not need."""
    deadline = time.monotonic() + seconds
    is_shorter = True
    while is_shorter:
        is_shorter = False
        for start, end, kept in _droppable(text):
            if time.monotonic() > deadline:
                return text
            lines = text.split("\n")
            lines[start - 1 : end] = kept
            changed = "\n".join(lines)
            try:
                compile(changed, "train.py", "exec")
            except SyntaxError:
                continue
            if is_wrong(changed):
                text, is_shorter = changed, True
                break
    return text


def _droppable(text: str) -> list[tuple[int, int, list[str]]]:
    """Return lines that may be left out, the most first, and what comes in their place."""
    tree = ast.parse(text)
    found: list[tuple[int, int, list[str]]] = []
    lines = text.split("\n")
    used = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}
    used |= {each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt) or (isinstance(node, (ast.Import, ast.ImportFrom)) and node.lineno > 10):
            continue
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
        end = node.end_lineno or first
        if "workspace.run(" in "".join(lines[first - 1 : end]) or "workspace =" in lines[first - 1]:
            continue
        space = " " * _column_of_line(text, first)
        found += [(first, end, []), (first, end, [space + "pass"])]
        body: list[ast.stmt] | None = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and body[0].lineno > first
            and not isinstance(node, (ast.FunctionDef, ast.ClassDef))
        ):
            inner = lines[body[0].lineno - 1 : body[-1].end_lineno]
            found.append((first, end, [each.replace("    ", "", 1) for each in inner]))
    return sorted(found, key=lambda each: (each[0] - each[1] + len(each[2]), -each[0]))


# ------------------------------------------------------------------ the program


def _import_all(libraries: list[Library]) -> None:
    """Have this process import what a pass imports, so that its children need not."""
    workspace = ds.Workspace("first")
    with workspace.run():
        made: Any = torch.ones(3) if torch is not None and "torch" in libraries else np.ones(3)
        float((made * 2).sum())
    workspace.peak()


def main() -> int:
    """Run what the command line names; the status of the program."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress.advice", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="of each library (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="of all random choices (default: 0)")
    parser.add_argument("--first", type=int, default=1, help="begin with this round (default: 1)")
    parser.add_argument("--only", nargs="+", choices=LIBRARIES, default=list(LIBRARIES), help="these libraries alone")
    parser.add_argument("--folder", type=Path, help="write programs with findings there")
    parser.add_argument("--missing", action="store_true", help="look for advice that is missing, too")
    parser.add_argument("--shorten", type=float, default=60.0, help="seconds for each finding (default: 60)")
    parser.add_argument("--shorten-at-most", type=int, default=5, help="so many findings of a kind (default: 5)")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    _import_all(options.only)
    with tempfile.TemporaryDirectory(prefix="advice") as folder, contextlib.suppress(KeyboardInterrupt):
        for number in range(options.first, options.first + options.rounds):
            for library in options.only:
                if library == "numpy" or has(library):
                    _round(number, library, Path(folder), options, counts)
    for what, count in sorted(counts.items()):
        print(f"{count:>7} {what}", flush=True)
    return 1 if any(what.startswith("[") for what in counts) else 0


def _round(number: int, library: Library, folder: Path, options: argparse.Namespace, counts: Counter[str]) -> None:
    """Write and judge one program."""
    text = program(random.Random(f"{options.seed} {library} {number}"), library)
    before, findings = findings_of(text, folder, missing=options.missing)
    counts[f"programs of {library}"] += 1
    counts[f"programs of {library} that do not run: {before.error.split(':')[0]}"] += bool(before.error)
    counts.update(f"pieces of advice: {_verb(advice)}" for _, advice, _ in before.advice)
    for kind in {each.kind for each in findings}:
        first = next(each for each in findings if each.kind == kind)
        counts[f"[{kind}]"] += 1
        is_new = counts[f"[{kind}]"] <= options.shorten_at_most
        short = text

        def is_wrong(changed: str, kind: str = kind) -> bool:
            _, found = findings_of(changed, folder, missing=kind == "missing", only=kind.split(":")[0])
            return any(each.kind == kind for each in found)

        if options.shorten and is_new:
            short = shortened(text, is_wrong, options.shorten)
            _, left = findings_of(short, folder, missing=kind == "missing", only=kind.split(":")[0])
            first = next((each for each in left if each.kind == kind), first)
        print(f"{library} {number} (seed {options.seed}): {first}", flush=True)
        if options.folder is not None:
            options.folder.mkdir(parents=True, exist_ok=True)
            name = f"{library}_{options.seed}_{number}_{re.sub(r'[^a-z]+', '_', kind.lower())}.py"
            (options.folder / name).write_text(
                f"{short}\n# {str(first).replace(chr(10), chr(10) + '# ')}\n", encoding="utf-8"
            )
        else:
            print(indent_of(short), flush=True)


def indent_of(text: str) -> str:
    """Return a program as it is printed."""
    return "\n".join(f"    | {line}" for line in text.split("\n"))


if __name__ == "__main__":
    sys.exit(main())
