"""Installations from a folder of source code, as contributors make them."""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("leaks", "planner", "scopes", "sequences", "tensors", "workspace")
if not (ROOT / "scopes").is_dir():
    pytest.skip("the sources of the package are not beside these tests", allow_module_level=True)

PROGRAM = """
import disposescope as ds

with ds.dispose_scope() as scope:
    x = ds.zeros(3)
reveal_type(scope)
reveal_type(x)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkout that was not built."""
    source = tmp_path / "source"
    unwanted = shutil.ignore_patterns("__pycache__", "*.so", *ROOMS)
    shutil.copytree(ROOT / "disposescope", source / "disposescope", ignore=unwanted)
    for room in ROOMS:
        shutil.copytree(ROOT / room, source / room, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        (source / "disposescope" / room).symlink_to(f"../{room}")
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, source)
    return source


def without_links(source: Path) -> Path:
    """The same as an archive leaves it, or git on Windows."""
    for room in ROOMS:
        (source / "disposescope" / room).unlink()
        (source / "disposescope" / room).write_text(f"../{room}")
    return source


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True)


def test_source_without_links_says_what_to_run(source: Path) -> None:
    process = run(sys.executable, "-S", "-c", "import disposescope", cwd=without_links(source))
    assert process.returncode == 1
    assert process.stderr.endswith(
        f"ImportError: {source} holds the source of disposescope, without the links of a checkout: "
        "run `pip install .` there, and start Python in another folder\n"
    )


def test_a_checkout_that_was_not_built_says_what_to_run(source: Path) -> None:
    process = run(sys.executable, "-c", "import disposescope", cwd=source)
    assert process.returncode == 1
    assert process.stderr.endswith("run `pip install -e .` in the checkout of disposescope\n")


@pytest.mark.long
@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_an_editable_installation_is_found_by_python_and_by_type_checkers(
    links: bool, source: Path, tmp_path: Path
) -> None:
    pytest.importorskip("mypy")
    pytest.importorskip("pyright")
    environment, elsewhere = tmp_path / "environment", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "program.py").write_text(PROGRAM)
    venv.create(environment, with_pip=True, symlinks=True)
    python = environment / "bin" / "python"
    made = run(
        python, "-m", "pip", "install", "--quiet", "-e", source if links else without_links(source), cwd=tmp_path
    )
    assert made.returncode == 0, made.stderr
    used = run(
        python, "-c", "import disposescope as ds\nwith ds.dispose_scope(): print(ds.zeros(3).shape)", cwd=elsewhere
    )
    assert used.stdout == "(3,)\n", used.stderr
    mypy = run(sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "program.py", cwd=elsewhere)
    pyright = run(sys.executable, "-m", "pyright", "--pythonpath", python, "program.py", cwd=elsewhere)
    for checker in (mypy, pyright):
        assert checker.returncode == 0, checker.stdout
        assert "DisposeScope" in checker.stdout
        assert "Tensor" in checker.stdout
