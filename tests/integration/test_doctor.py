"""``python -m disposescope doctor`` lists what is patched; its status says whether that fits."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from disposescope.__main__ import _is_newer


def doctor(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    program = f"import sys\n{before}\nfrom disposescope.__main__ import main\nsys.exit(main({list(arguments)!r}))"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


WITHOUT = "sys.modules.update(torch=None, jax=None)"
WITHOUT_A_HOOK = """
sys.modules["torch"] = None
import jax
for name in ("_post_hook_state", "jax_jit"):
    vars(jax._src.api).pop(name, None)
"""


def test_the_table_is_printed_where_no_library_but_numpy_is_installed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {WITHOUT}\nimport runpy\nsys.argv[1:] = ['doctor']\n"
         "runpy.run_module('disposescope', run_name='__main__')"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("disposescope ")
    assert lines[0].endswith(" (compiled: leaks.births, planner, scopes, sequences, tensors.arena)")
    assert lines[1].startswith(f"{platform.system()} {platform.machine()}")
    assert lines[1].endswith(", no PyTorch for CUDA")
    assert lines[2].startswith(f"python {sys.version.partition(' ')[0]} (tested: ")
    assert "torch not installed (tested: " in done.stdout
    assert "python: gc.callbacks" in lines
    assert "torch: torch.overrides.has_torch_function" in lines
    assert lines[-1] == "all guards hold"
    assert lines[lines.index("python: gc.callbacks") + 1] == "    state      in place"
    assert "\x1b" not in done.stdout


def test_a_guard_that_does_not_hold_ends_it_with_status_1_and_what_follows() -> None:
    pytest.importorskip("jax", reason="JAX is not installed")
    done = doctor("doctor", before=WITHOUT_A_HOOK)
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    name = "jax: jax._src.api._post_hook_state (before 0.8, the states of jax_jit there)"
    assert lines[lines.index(name) + 1] == "    state      GUARD FAILS"
    consequence = "its results are found when a scope is left, or somebody counts"
    assert lines[-1] == f"guard fails: {name.removeprefix('jax: ')}: {consequence}"


def test_a_jax_that_scopes_do_not_know_ends_it_with_status_1() -> None:
    pytest.importorskip("jax", reason="JAX is not installed")
    done = doctor(
        "doctor",
        before="sys.modules['torch'] = None\nimport jax, types\nsys.modules['jax._src.array'] = types.ModuleType('x')",
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "not watched: jax " in done.stdout
    assert "all guards hold" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("doctor", "--all"), "unrecognized arguments: --all"),
        (("docto",), "invalid choice: 'docto'; did you mean doctor? (choose from doctor, plan, run, "),
        (("lk",), "invalid choice: 'lk' (choose from doctor, plan, run, "),
    ],
)
def test_other_arguments_are_refused_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    done = doctor(*arguments, before=WITHOUT)
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith(f"python -m disposescope: error: {message}")


@pytest.mark.long
def test_a_reader_that_closes_the_pipe_early_is_no_error() -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "disposescope", "doctor"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert command.stdout is not None
    assert command.stderr is not None
    with command:
        command.stdout.close()
        assert command.stderr.read() == ""
    assert command.returncode == 0


@pytest.mark.long
def test_what_is_not_watched_is_said_and_newer_versions_are() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    done = doctor(
        "doctor",
        before="sys.modules['jax'] = None\nimport torch\ntorch.__version__ = '99.1.0'\ndel torch._C._swap_tensor_impl",
    )
    lines = done.stdout.splitlines()
    [torch] = [line for line in lines if line.startswith("torch 99.1.0 (tested: ")]
    assert torch.endswith(", newer than what was tested)")
    assert [line for line in lines if line.startswith("not watched: torch 99.1.0 (tested: ")]
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("version", "tested", "is_newer"),
    [
        ("2.15.0+cpu", "2.5 to 2.14", True),
        ("2.14.1", "2.5 to 2.14", False),
        ("3.0", "2.5 to 2.14", True),
        ("not installed", "2.5 to 2.14", False),
        ("3.11.7", "3.11 to 3.14", False),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, tested: str, is_newer: bool) -> None:
    assert _is_newer(version, tested) is is_newer
