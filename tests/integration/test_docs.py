"""All code in the README, in docs/ and in public docstrings runs, and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import disposescope

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FENCED = re.compile(r"^```(python|pycon)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page: Path) -> None:
    text = page.read_text()
    if "import torch" in text:
        pytest.importorskip("torch", reason="this page shows PyTorch")
    if "import jax" in text:
        pytest.importorskip("jax", reason="this page shows JAX")
    names: dict[str, object] = {"__name__": "page"}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for found in FENCED.finditer(text):
        language, code = found.groups()
        line = text[: found.start()].count("\n") + 1
        if language == "python":
            exec(compile("\n" * line + code, str(page), "exec"), names)
        else:
            test = doctest.DocTestParser().get_doctest(code, names, page.name, str(page), line)
            runner.run(test, clear_globs=False)
            names.update(test.globs)
    assert runner.summarize(verbose=False).failed == 0
    assert disposescope.current_scope() is None


def test_the_readme_prints_what_its_comments_say() -> None:
    code = FENCED.search((ROOT / "README.md").read_text())
    assert code is not None
    wanted = re.findall(r"^ *print\(.*?\)\s+# (.+)$", code.group(2), re.MULTILINE)
    printed = subprocess.run([sys.executable, "-c", code.group(2)], capture_output=True, text=True, check=True)
    assert printed.stdout.splitlines() == wanted
    assert len(wanted) >= 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


def modules() -> list[str]:
    # The examples of public classes are found in the package, which is where they say that they
    # are.
    return [
        "disposescope",
        *sorted(info.name for info in pkgutil.walk_packages(disposescope.__path__, "disposescope.")),
    ]


@pytest.mark.parametrize("name", modules())
def test_the_examples_in_docstrings_run(name: str) -> None:
    if "torch" in name:
        pytest.importorskip("torch", reason="this module is for programs that have PyTorch")
    if ".jax" in name:
        pytest.importorskip("jax", reason="this module is for programs that have JAX")
    if name.endswith("__main__"):
        return
    module: ModuleType = importlib.import_module(name)
    for public in disposescope.__all__:
        getattr(disposescope, public)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in doctest.DocTestFinder().find(module, name):
        if all(find_spec(library) for library in ("torch", "jax") if f"import {library}" in (test.docstring or "")):
            runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def test_every_public_name_is_in_the_reference() -> None:
    reference = (ROOT / "docs" / "reference.md").read_text()
    missing = [name for name in disposescope.__all__ if f"`{name}" not in reference]
    assert not missing
