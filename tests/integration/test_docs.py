"""All code in the README, in docs/ and in public docstrings runs, and prints what it says."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import functools
import importlib
import json
import os
import pkgutil
import re
import runpy
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import disposescope
from disposescope import frameworks, leaks

ROOT = Path(__file__).resolve().parents[2]
DOOR = Path(disposescope.__file__).parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
# Elsewhere: FastAPI's and Lightning's in tests/frameworks, Ray's in tests/engines, that of several
# processes in test_torchrun.
ELSEWHERE = ("from fastapi import", "import lightning", "import ray", "init_process_group")
PAGES_THAT_RUN = [page for page in PAGES if not any(words in page.read_text() for words in ELSEWHERE)]
FENCED = re.compile(r"^```(python|pycon)\n(.*?)^```", re.DOTALL | re.MULTILINE)
README = (ROOT / "README.md").read_text()
# What pages show of commands: each with its output.
SERVICES = (ROOT / "docs" / "how-to" / "leaks-in-workers-and-servers.md").read_text()
COMMANDS = re.findall(r"^```console\n\$ leak-report ([^\n]*)\n(.*?)^```", README + SERVICES, re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


@pytest.mark.parametrize("page", PAGES_THAT_RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Pages write files.
    monkeypatch.chdir(tmp_path)
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
            # What a page declares for good, such as a class that keeps tensors, holds all else on
            # it.
            test.globs.pop("detector", None)
    names.pop("detector", None)
    assert runner.summarize(verbose=False).failed == 0
    assert disposescope.current_scope() is None


@pytest.mark.parametrize("first", ["shared", "adapter"])
def test_a_report_sees_what_the_adapter_of_the_page_tells(first: str, tmp_path: Path) -> None:
    """The library and its adapter of the page, each in a file, imported in either order."""
    text = (ROOT / "docs" / "how-to" / "add-a-framework.md").read_text()
    code = "".join(example.source for example in doctest.DocTestParser().get_examples(text))
    _, code = code.split("import ctypes\n")
    library, adapter = code.split("from disposescope.frameworks import HeldMemory")
    library, _ = library.replace("shared.made", "made").split("shared = types")
    adapter, _ = adapter.split("with ds.LeakDetector()")
    (tmp_path / "shared.py").write_text(f"import ctypes\nmade = []\n{library}")
    (tmp_path / "adapter.py").write_text(
        f"from disposescope.frameworks import Framework, Kind, born, register, HeldMemory{adapter}"
    )
    program = f"""
import {first}
import shared, adapter

streams = []
for step in range(60):
    streams.append(shared.Stream(shared.SharedArray(10_000)))
"""
    (tmp_path / "program.py").write_text(program)
    command = sys.executable, "-m", "disposescope", "run", "-o", "report.json", "program.py"
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    [leak] = report["leaks"]
    assert (leak["tensor_kind"], leak["count"], leak["nbytes"]) == ("shared.Array", 60, 60 * 80_000)
    assert (leak["site"]["line"], leak["holders"][-1]) == (7, "module __main__.streams[0].array()")
    assert "60 of 60 that this line made are alive" in done.stderr


@pytest.mark.long
@pytest.mark.unmeasured
def test_the_readme_prints_what_its_comments_say() -> None:
    pytest.importorskip("torch", reason="the first example is PyTorch's")
    code = "\n".join(code for language, code in FENCED.findall(README) if language == "python")
    wanted = re.findall(r"^ *print\(.*?\)\s+# (.+)$", code, re.MULTILINE)
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout.splitlines() == wanted
    assert len(wanted) >= 5


def test_the_page_of_versions_shows_what_the_matrix_has_found() -> None:
    subprocess.run([sys.executable, ROOT / ".ci" / "compatibility.py", "--check"], check=True)


def test_the_readme_shows_the_loop_that_the_report_is_about() -> None:
    [loop, *_] = [code for language, code in FENCED.findall(README) if language == "python"]
    example = (ROOT / "docs" / "examples" / "growing_loop.py").read_text()
    assert loop in example
    # The report names it by its number.
    assert loop.splitlines()[-1] == example.splitlines()[17]


@pytest.mark.long
@pytest.mark.unmeasured
@pytest.mark.parametrize(("command", "output"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_pages_show_what_leak_report_prints(command: str, output: str, tmp_path: Path) -> None:
    unknown = ""
    if "growing_loop" in command:
        pytest.importorskip("torch", reason="this example is PyTorch's")
        from disposescope.tensors.torch.graphs.walk import SHOWS_SAVED

        # Before 2.10 PyTorch does not show what was changed in place, here weights: the output
        # says so first.
        unknown = "" if SHOWS_SAVED else r"^(/.*RuntimeWarning: torch .*\n  .*|undecided: not watched: torch .*)\n"
    shutil.copytree(ROOT / "docs" / "examples", tmp_path / "docs" / "examples")
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "disposescope", *command.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
    )
    # How long ago things were made differs; "..." stands for the rest.
    shown, told = (re.sub(r"\d+\.\d s( and| ago)", r"SOME s\1", text) for text in (output, done.stdout + done.stderr))
    if unknown:
        told, times = re.subn(unknown, "", told, flags=re.MULTILINE)
        assert times == 2
    assert told.startswith(shown.removesuffix("...\n"))


def test_tables_and_plots_show_the_raw_results_of_benchmarks() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "draw_side_by_side.py"))
    results = json.loads(script["RESULTS"].read_text())
    for path, text in script["made"](results).items():
        assert path.read_text() == text, f"run benchmarks/draw_side_by_side.py: {path.name} shows something else"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_every_page_can_be_reached_from_the_first_ones(page: str) -> None:
    linked = {(ROOT / page).parent / target for target in LINK.findall((ROOT / page).read_text())}
    assert set(PAGES) - {ROOT / "README.md", ROOT / page} <= linked


def test_each_setting_of_the_site_is_given_once() -> None:
    # YAML takes the last of two.
    settings = re.findall(r"^(\w+):", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(set(settings)) == sorted(settings)


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


def test_every_public_name_has_its_docstring_on_the_site() -> None:
    pages = runpy.run_path(str(ROOT / "docs" / "site_hooks.py"))["API"]
    shown = [name for _, _, _, names in pages.values() for name in names.split()]
    assert len(shown) == len(set(shown))
    assert set(shown) == {*disposescope.__all__, *leaks.__all__, *frameworks.__all__}


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    settings = (ROOT / "mkdocs.yml").read_text()
    pages = [*(ROOT / "docs").rglob("*.md")]
    assert len(pages) > 25
    assert not [
        page for page in pages if f"- {page.relative_to(ROOT / 'docs')}\n" not in settings.replace("Home: ", "")
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lists_of_a_page_are_read_alike_on_the_forge_and_on_the_site(page: Path) -> None:
    # The site needs four spaces before what is inside of an item, and an empty line before a list.
    text = re.sub(r"^ *```.*?^ *```$", "code", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert not re.findall(r"^ {1,3}(?:[-*]|\d+\.) .*$", text, re.MULTILINE)
    assert not re.findall(r"\n\n {1,3}\S.*$", text, re.MULTILINE)
    assert not re.findall(r"^(?![-*] |\d+\. |\s|#).+\n(?:[-*]|\d+\.) .*$", text, re.MULTILINE)


def test_every_field_of_a_report_is_in_the_reference() -> None:
    pages = "".join((ROOT / "docs" / page).read_text() for page in ("reference.md", "leak-report.md"))
    classes = [cls for name in leaks.__all__ if dataclasses.is_dataclass(cls := getattr(leaks, name))]
    assert len(classes) > 15
    names = {name for cls in classes for name in (cls.__name__, *(field.name for field in dataclasses.fields(cls)))}
    assert not [name for name in names if not name.startswith("_") and f"`{name}" not in pages]


# The headings of the page on errors quote messages; "…" stands for what a message fills in.


TROUBLESHOOTING = ROOT / "docs" / "troubleshooting.md"
QUOTED = re.compile(r"`(?:([A-Z]\w+(?:Error|Warning)): )?([^`]+)`")
PUBLIC = frozenset(name for name in disposescope.__all__ if name.endswith(("Error", "Warning")))


def quoted_messages() -> list[tuple[str, str]]:
    """Return the messages that the headings quote, each after its class name, or "" for none."""
    headings = re.findall(r"^### (.+)$", TROUBLESHOOTING.read_text(), re.MULTILINE)
    return [(found[1] or "", found[2]) for heading in headings for found in QUOTED.finditer(heading)]


def text_of(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join([text_of(part) for part in node.values])
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "…"


@functools.cache
def messages_in_the_source() -> list[tuple[str, str]]:
    """Return the texts in the source, each after the name of the class called with it, or ""."""
    found: list[tuple[str, str]] = []
    for room in ("scopes", "tensors", "sequences", "leaks", "planner", "workspace"):
        for path in (DOOR / "__init__.py", *(DOOR / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and node.args:
                    called = ast.unparse(node.func)
                    made = ast.unparse(node.args[1]) if called.endswith("warn") and node.args[1:] else called
                    made = "RuntimeWarning" if called.endswith("warn_without_raising") else made
                    found.append((made.rpartition(".")[2], text_of(node.args[0])))
                elif isinstance(node, (ast.JoinedStr, ast.Constant)):
                    found.append(("", text_of(node)))
        for path in (DOOR / room).rglob("*.[ch]"):
            for name, text in re.findall(r'PyExc_(\w+),\s*"((?:[^"\\]|\\.)+)"', path.read_text()):
                found.append((name, re.sub(r"%\w+", "…", text)))
    return found


@functools.cache
def pattern_of(text: str) -> re.Pattern[str]:
    return re.compile(".*".join([re.escape(part.strip()) for part in text.split("…")]), re.DOTALL)


def quotes(quoted: tuple[str, str], message: tuple[str, str]) -> bool:
    return quoted[0] == message[0] and pattern_of(quoted[1]).fullmatch(message[1]) is not None


@pytest.mark.skipif(not (DOOR / "scopes" / "src").is_dir(), reason="a wheel has no C sources, and their messages count")
def test_headings_quote_messages_that_exist() -> None:
    missing = [
        quoted
        for quoted in quoted_messages()
        if not quoted[1].isidentifier() and not any(quotes(quoted, message) for message in messages_in_the_source())
    ]
    assert not missing


def test_every_public_error_class_has_a_heading() -> None:
    assert not PUBLIC - {name or text for name, text in quoted_messages()}


def test_every_message_of_a_public_error_and_every_warning_has_a_heading() -> None:
    missing = [
        message
        for message in messages_in_the_source()
        if (message[0] in PUBLIC or message[0].endswith("Warning")) and message[1].strip("…")
        if not any(quotes(quoted, message) for quoted in quoted_messages())
    ]
    assert not missing


PROSE = [*PAGES, *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "RELEASING.md", "benchmarks/README.md"))]


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_ends_at_column_100(page: Path) -> None:
    lines = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE).splitlines()
    # A row of a table, a heading, a picture and a link stand in one line each.
    long = [line for line in lines if len(line) > 100 and not re.match(r"\||#|!\[| *\[.*\),?$|.*https?://\S{40}", line)]
    assert long == []


def test_the_release_has_one_date() -> None:
    released = re.search(r"^## \[([\d.]+)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text()
    assert released is not None
    assert f"\nversion: {released[1]}\n" in citation
    assert f"\ndate-released: {released[2]}\n" in citation
