"""The pytest plugin fails tests that leave tensors behind, with the report as the text."""

import importlib.metadata
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

import disposescope

pytest_plugins = ["pytester"]

LEAKY = """\
import disposescope as ds
import pytest
KEPT = []

def keep():
    KEPT.append(ds.zeros((10, 10)))

@pytest.mark.no_tensor_leaks
def test_leaks():
    keep()

@pytest.mark.no_tensor_leaks
def test_is_clean():
    with ds.dispose_scope():
        float((ds.ones(3) * 2).sum())

def test_is_not_watched():
    keep()
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    root = str(Path(disposescope.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])))
    for name in ("CI", "BUILD_NUMBER"):
        # Where one of them is set, pytest says the whole message again in its summary.
        monkeypatch.delenv(name, raising=False)
    try:
        installed = any(point.name == "disposescope" for point in importlib.metadata.entry_points(group="pytest11"))
    except importlib.metadata.PackageNotFoundError:
        installed = False
    plugin = [] if installed else ["-p", "disposescope.leaks.running.pytest_plugin"]

    def run_tests(text: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(text)
        return pytester.runpytest_subprocess(*plugin, "-p", "no:cacheprovider", *options)

    return run_tests


def test_a_marked_test_that_leaks_fails_with_the_report_and_others_do_not(run) -> None:
    result = run(LEAKY)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*the test leaves tensors behind: 1 leak, 1 tensor, 800 bytes*",
            "*born at *.py:6 in keep()*",
            "*held by *KEPT[[]0]",
            "*= tensor leaks =*",
            "*::test_leaks: 1 leak, 1 tensor, 800 bytes",
        ]
    )


def test_the_option_watches_every_test(run) -> None:
    run(LEAKY, "--tensor-leaks").assert_outcomes(passed=1, failed=2)


@pytest.mark.unmeasured
@pytest.mark.long
def test_it_works_in_the_processes_of_xdist(run) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    result = run(LEAKY, "-n", "2")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*= tensor leaks =*", "*::test_leaks: 1 leak, 1 tensor, 800 bytes"])


def test_a_run_before_fills_the_caches(run) -> None:
    text = """\
import functools
import disposescope as ds
import pytest

@functools.lru_cache
def table(size):
    return ds.zeros(size)

@pytest.fixture
def size():
    return 10

@pytest.mark.no_tensor_leaks(warmup=1)
def test_uses_a_cache(size):
    assert len(table(size)) == 10

@pytest.mark.no_tensor_leaks
def test_fills_a_cache():
    table(20)
"""
    run(text).assert_outcomes(passed=1, failed=1)


def marked(*markers: str) -> str:
    """One leaking test for each marker, all of which leak in the same line."""
    tests = [
        f"@pytest.mark.no_tensor_leaks({mark})\ndef test_{number}():\n    keep()\n"
        for number, mark in enumerate(markers)
    ]
    return LEAKY.partition("@pytest")[0] + "\n".join(tests)


def test_what_is_allowed_is_no_failure(run) -> None:
    allowed = ["allow='alive'", "allow='keep'", "allow='*test_*.py'", "allow=['*.py:6']"]
    refused = ["allow=['view', '*::nothing']", "allow='*.py:7'"]
    run(marked(*allowed, *refused)).assert_outcomes(passed=4, failed=2)


@pytest.mark.long
@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("no_tensor_leaks('view')", "no_tensor_leaks takes allow= and warmup=, not 'view'"),
        ("no_tensor_leaks(allow=3)", "no_tensor_leaks: allow= takes kinds of leak and patterns of sites, not 3"),
        ("no_tensor_leaks(allow=[3])", "no_tensor_leaks: allow= takes kinds of leak and patterns of sites, not [3]"),
        ("no_tensor_leaks(warmup=-1)", "no_tensor_leaks: warmup= is a number of runs, not -1"),
        ("no_tensor_leaks(kinds='view')", "no_tensor_leaks takes allow= and warmup=, not 'kinds'"),
        ("no_tensor_leaks(allow='veiw')", "no_tensor_leaks: there is no kind of leak 'veiw'; did you mean 'view'?"),
        ("no_tensor_leek", "there is no marker 'no_tensor_leek'; did you mean 'no_tensor_leaks'?"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnknownMarkWarning")
def test_a_mistyped_marker_is_a_usage_error_before_any_test_runs(run, marker: str, message: str) -> None:
    result = run(f"import pytest\ndef test_runs(): pass\n@pytest.mark.{marker}\ndef test_marked(): pass\n")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.stderr.lines[0].endswith(f"::test_marked: {message}")
    assert result.parseoutcomes().get("passed") is None


@pytest.mark.unmeasured
@pytest.mark.long
def test_a_mistyped_marker_fails_its_test_in_a_process_of_xdist(run) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    result = run("import pytest\n@pytest.mark.no_tensor_leaks(allow='veiw')\ndef test_marked(): pass\n", "-n", "1")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*::test_marked: no_tensor_leaks: there is no kind of leak 'veiw'; did you mean*"])


def test_a_report_is_printed_once(run) -> None:
    text = run(LEAKY).stdout.str()
    assert text.count("held by") == 1
    assert "During handling" not in text


def test_a_test_that_fails_for_a_reason_of_its_own_says_that(run) -> None:
    text = """\
import disposescope as ds
import pytest
KEPT = []

@pytest.mark.no_tensor_leaks
def test_fails():
    KEPT.append(ds.zeros(10))
    assert 1 == 2
"""
    result = run(text)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*assert 1 == 2*"])
    result.stdout.no_fnmatch_line("*leaves tensors behind*")


def test_the_fixture_is_an_open_detector(run) -> None:
    text = """\
import disposescope as ds

def test_asks(tensor_leaks):
    kept = ds.zeros(10)
    assert [record.nbytes for record in tensor_leaks.take_snapshot()] == [80]
    del kept
    ds.assert_no_leaks(tensor_leaks)
"""
    run(text).assert_outcomes(passed=1)


def test_the_marker_is_known_where_markers_are_strict(run) -> None:
    run(LEAKY, "--strict-markers", "-W", "error", "-k", "clean").assert_outcomes(passed=1)


def test_a_run_that_asks_for_nothing_imports_nothing_of_the_library(run, pytester: pytest.Pytester) -> None:
    text = """\
import sys

def test_modules():
    ours = [name for name in sys.modules if name.startswith("disposescope")]
    assert "disposescope.leaks.running.pytest_plugin" in ours
    assert not [name for name in sys.modules if name.startswith(("numpy", "psutil"))]
    assert not [name for name in ours if name.startswith(("disposescope.tensors", "disposescope.leaks.detector"))]
"""
    run(text, "-p", "no:hypothesispytest", "-p", "no:benchmark").assert_outcomes(passed=1)


RAISES = """\
import numpy as np
import pytest

def refuse(batch):
    mine = batch * 2
    raise ValueError(mine.sum())

@pytest.mark.no_tensor_leaks
def test_expects_an_error():
    batch = np.ones(50_000)
    with pytest.raises(ValueError) as error:
        refuse(batch)
    assert "100000" in str(error.value)

@pytest.mark.no_tensor_leaks
def test_leaves_a_cycle():
    batch = np.ones(50_000)
    try:
        refuse(batch)
    except ValueError as raised:
        error = raised
"""


@pytest.mark.long
def test_the_error_that_a_test_expects_keeps_nothing(run) -> None:
    result = run(RAISES)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*cycle (certain): 1 *numpy.ndarray, 400.0 kB*", "FAILED *::test_leaves_a_cycle*"])


def test_what_a_test_gives_to_assert_freed_must_be_gone_when_it_returns(run) -> None:
    result = run("""\
import disposescope
import pytest
KEPT = []

class Model:
    pass

def test_frees(assert_freed):
    model = Model()
    assert_freed(model)

def test_keeps(assert_freed):
    model = Model()
    assert_freed(model)
    KEPT.append(model)

def test_fails_by_itself(assert_freed):
    model = Model()
    assert_freed(model)
    assert model is None

@pytest.mark.no_tensor_leaks
def test_keeps_and_is_marked(assert_freed):
    model = Model()
    model.weights = disposescope.zeros(100)
    assert_freed(model)
    KEPT.append(model)
""")
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(["*the test does not free what it was to free: Model is alive*", "*KEPT[[]0]"])
    # Of the two checks of a marked test, that one is told which says what holds the model.
    result.stdout.no_fnmatch_line("*leaves tensors behind*")
    result.stdout.no_fnmatch_line("*LeakWarning*")


@pytest.mark.unmeasured
@pytest.mark.long
@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_the_parts_of_a_model_must_be_gone_also_where_nothing_else_of_this_package_is_used(run) -> None:
    result = run("""\
import torch

KEPT = []

def test_keeps(assert_freed):
    model = torch.nn.Linear(256, 256)
    assert_freed(model)
    KEPT.append(model.state_dict())
""")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Linear(256, 256) is gone, and parts of it are there with *"])
    result.stdout.no_fnmatch_line("*During handling*")
