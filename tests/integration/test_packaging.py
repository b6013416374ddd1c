"""What the package promises in a checkout, an editable install, a wheel and an sdist alike."""

import ast
import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import disposescope

ROOT = Path(__file__).parents[2]
DOOR = Path(disposescope.__file__).parent
ROOMS = {
    room: Path(importlib.import_module(f"disposescope.{room}").__path__[0])
    for room in ("scopes", "leaks", "planner", "sequences", "tensors", "workspace")
}
SOURCES = {
    f"{room}/{source.relative_to(folder)}": source
    for room, folder in ROOMS.items()
    for source in sorted(folder.rglob("*.py"))
}


@pytest.fixture
def distribution() -> importlib.metadata.Distribution:
    return importlib.metadata.distribution("disposescope")


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def after_importing_disposescope(expression: str) -> Any:
    """Return the value of `expression`, as JSON carries it, in a new interpreter.

    That has imported disposescope and, apart from json and sys, nothing else.
    """
    code = f"import disposescope, json, sys; print(json.dumps({expression}))"
    path = os.pathsep.join(filter(None, [str(DOOR.parent), os.environ.get("PYTHONPATH")]))
    process = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return json.loads(process.stdout)


def imported_absolutely(source: Path) -> set[str]:
    """The top-level names that a module imports, anywhere in it."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source.read_bytes())):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            modules.add(node.module)
    return {module.partition(".")[0] for module in modules}


def test_the_installed_version_is_the_one_in_pyproject(
    distribution: importlib.metadata.Distribution, pyproject: dict[str, Any]
) -> None:
    assert distribution.version == pyproject["project"]["version"]


def test_the_citation_and_the_changelog_tell_the_same_version(pyproject: dict[str, Any]) -> None:
    version = pyproject["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    # A version that is not there has not been released: see RELEASING.md.
    headings = re.findall(r"^## \[(.+?)\](.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings
    for name, date in headings:
        assert (name == "Unreleased" and not date) or re.fullmatch(r" - \d{4}-\d\d-\d\d", date), name


def test_the_urls_are_those_of_the_repository(pyproject: dict[str, Any]) -> None:
    repository = "https://github.com/disposescope/disposescope"
    urls: dict[str, str] = pyproject["project"]["urls"]
    assert urls["Source"] == repository
    for url in urls.values():
        assert url.startswith(repository)
        path = url.removeprefix(repository).removeprefix("/tree/main").removeprefix("/blob/main")
        assert path == "/issues" or (ROOT / path.strip("/")).exists(), url


def test_the_links_of_the_description_work_without_the_checkout(distribution: importlib.metadata.Distribution) -> None:
    text = distribution.metadata.get_payload() or distribution.metadata["Description"]
    assert isinstance(text, str)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(links) > 20
    own = re.compile(
        r"https://(?:github\.com/disposescope/disposescope/blob|raw\.githubusercontent\.com/disposescope/disposescope)"
        rf"/v{re.escape(distribution.version)}/([^#]+)"
    )
    paths: list[str] = []
    for link in links:
        assert link.startswith(("#", "https://")), link
        path = own.fullmatch(link.partition("#")[0])
        paths += [] if path is None else [path[1]]
    assert {"docs/index.md", "docs/images/leak-report.png"} <= set(paths)
    for each in paths:
        assert (ROOT / each).exists(), each


def test_numpy_and_psutil_are_the_only_requirements(distribution: importlib.metadata.Distribution) -> None:
    always = [requirement for requirement in distribution.requires or [] if "extra ==" not in requirement]
    assert sorted(always) == ["numpy>=2.0", "psutil"]


def test_wheels_are_tested_with_the_pinned_tools(pyproject: dict[str, Any]) -> None:
    assert set(pyproject["tool"]["cibuildwheel"]["test-requires"]) <= set(
        pyproject["project"]["optional-dependencies"]["test"]
    )


def test_the_tests_of_a_wheel_exist(pyproject: dict[str, Any]) -> None:
    files = re.findall(r"tests/\S+\.py", pyproject["tool"]["cibuildwheel"]["test-command"])
    assert files
    assert all((ROOT / file).is_file() for file in files)


def test_the_command_leak_report_is_installed_and_resolves(distribution: importlib.metadata.Distribution) -> None:
    [command] = distribution.entry_points.select(group="console_scripts")
    assert command.name == "leak-report"
    assert callable(command.load())


def test_the_package_is_marked_as_typed() -> None:
    assert (DOOR / "py.typed").is_file()


def test_every_folder_of_modules_is_a_listed_package(pyproject: dict[str, Any]) -> None:
    folders = {".".join(("disposescope", *Path(name).parent.parts)) for name in SOURCES}
    assert folders | {"disposescope"} == set(pyproject["tool"]["setuptools"]["packages"])


@pytest.mark.skipif(
    not (ROOT / "scopes").is_dir() or (ROOT / "PKG-INFO").is_file(),
    reason="only a checkout has the links, neither a wheel nor an sdist",
)
@pytest.mark.parametrize("room", ROOMS)
def test_a_checkout_holds_each_room_by_a_relative_link(room: str) -> None:
    assert (ROOT / "disposescope" / room).readlink() == Path("..", room)


def test_importing_disposescope_loads_each_file_once_and_no_room_under_another_name() -> None:
    loaded: dict[str, str | None] = after_importing_disposescope(
        "{name: getattr(module, '__file__', None) for name, module in sys.modules.items()}"
    )
    assert not loaded.keys() & ROOMS.keys()
    ours = {
        name: os.path.realpath(file)
        for name, file in loaded.items()
        if file and (name == "disposescope" or name.startswith("disposescope."))
    }
    assert len(set(ours.values())) == len(ours)
    assert "disposescope.scopes" in ours


def test_importing_disposescope_imports_no_optional_framework() -> None:
    optional = {"attr", "attrs", "jax", "jaxlib", "pytest", "torch"}
    assert optional.isdisjoint(after_importing_disposescope("list(sys.modules)"))


@pytest.mark.parametrize("name", SOURCES)
def test_the_rooms_import_each_other_relatively(name: str) -> None:
    assert imported_absolutely(SOURCES[name]).isdisjoint({"disposescope", *ROOMS})


@pytest.mark.parametrize("name", [name for name in SOURCES if name.startswith(("scopes/", "leaks/"))])
def test_scopes_knows_no_tensor_library(name: str) -> None:
    process_and_plugin = {"psutil", "pytest"}  # the memory of the process, and the plugin that pytest loads
    # Lives of millions of blocks are arrays of numbers. Loaded where a peak is asked for.
    numbers = {"numpy"} if name.startswith("leaks/peaks/") else set[str]()
    assert imported_absolutely(SOURCES[name]) <= sys.stdlib_module_names | process_and_plugin | numbers
