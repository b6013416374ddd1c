"""Each private name of other libraries that the package uses is in the table of patches."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import disposescope as ds
from disposescope import tensors as _tensors  # noqa: F401 (declares the rows)
from disposescope.scopes.base.process import PATCHES

DOOR = Path(ds.__file__).parent
ROOMS = ("scopes", "sequences", "leaks", "tensors", "workspace")
LIBRARIES = ("torch", "jax", "numpy")

pytestmark = pytest.mark.skipif(not (DOOR / "scopes" / "src").is_dir(), reason="a wheel has no C sources")


def is_private(name: str) -> bool:
    return name.partition(".")[0] in LIBRARIES and re.search(r"\._(?!_)", name) is not None


def dotted(expression: ast.AST | None, known: dict[str, str]) -> str:
    """Return what a dotted name stands for by the imports of its file; "" for other expressions."""
    if isinstance(expression, ast.Name):
        return known.get(expression.id, "")
    if isinstance(expression, ast.Attribute):
        whole = dotted(expression.value, known)
        return whole and f"{whole}.{expression.attr}"
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name) and expression.args:
        last = expression.args[-1] if len(expression.args) == 1 else expression.args[1]
        text = str(last.value) if isinstance(last, ast.Constant) else ""
        if expression.func.id == "import_module":
            return text
        whole = dotted(expression.args[0], known) if expression.func.id == "getattr" else ""
        return whole and f"{whole}.{text}"
    return ""


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                yield (
                    each.asname or each.name.partition(".")[0],
                    each.name if each.asname else each.name.partition(".")[0],
                )
        if isinstance(node, ast.ImportFrom) and not node.level:
            for each in node.names:
                yield each.asname or each.name, f"{node.module}.{each.name}"


def names_used(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    known = dict(imported(tree))
    yield from known.values()
    for node in ast.walk(tree):
        target = getattr(node, "target", None) or next(iter(getattr(node, "targets", ())), None)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(target, ast.Name):
            bound = dotted(node.value, known)
            if bound.partition(".")[0] in LIBRARIES:
                known[target.id] = bound
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Call)):
            yield dotted(node, known)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"\w+(\.\w+)+", node.value):
            yield node.value


def symbols_used(path: Path) -> Iterator[str]:
    text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    yield from re.findall(r"\b_Py[A-Z]\w+", text)
    yield from re.findall(r'ImportModule\("((?!disposescope)[^"]+)"', text)
    for mangled in re.findall(r'"_ZN(\w+)"', text):
        parts: list[str] = []
        while length := re.match(r"\d+", mangled):
            end = length.end() + int(length[0])
            parts.append(mangled[length.end() : end])
            mangled = mangled[end:]
        yield "::".join(parts)


def not_in_the_table(names: Iterable[str]) -> set[str]:
    listed = {name for row in PATCHES.rows() for name in row.patch.uses}
    listed |= {name for row in PATCHES.rows() for name in re.findall(r"[\w.]+", row.patch.name)}
    return {
        name
        for name in names
        # A listed name stands for what is in it, and its module is used too.
        if not any(re.match(rf"{re.escape(each)}(\b|_)", name) or each.startswith(f"{name}.") for each in listed)
    }


def test_each_private_name_of_python_code_is_in_the_table() -> None:
    used = {
        name
        for room in ROOMS
        for path in (DOOR / room).rglob("*.py")
        if path.name != "patches.py"
        for name in names_used(path)
        if is_private(name)
    }
    assert "torch._C._swap_tensor_impl" in used
    assert "jax._src.dispatch" in used
    assert not_in_the_table(used) == set()


def test_each_private_name_and_symbol_of_code_in_c_is_in_the_table() -> None:
    files = [path for room in (*ROOMS, "planner") for path in (DOOR / room).rglob("*.[ch]")]
    used = {name for path in files for name in symbols_used(path)}
    assert "at::impl::torch_function_all_disabled" in used
    assert "_PyDict_Pop" in used
    assert not_in_the_table(used) == set()


@pytest.mark.parametrize("name", ["torch._C._unheard_of", "jax._src.unheard_of", "_PyUnheard_Of"])
def test_another_name_is_found(name: str) -> None:
    assert not_in_the_table([name]) == {name}
