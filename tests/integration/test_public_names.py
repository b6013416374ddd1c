"""Public names are imported on first use, found by tools, and say they are of `disposescope`."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import pkgutil
import pydoc
import subprocess
import sys
import traceback
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import disposescope
from tests.programs import run_program

LOADED = """
import sys
def loaded(*names):
    return sorted(name for name in sys.modules if name.startswith(names))
"""


def test_the_import_loads_neither_numpy_nor_the_leak_detector_nor_the_metadata() -> None:
    assert (
        run_program(
            LOADED + "import disposescope\nprint(loaded('disposescope.leaks', 'numpy', 'psutil', 'importlib.metadata'))"
        )
        == "[]\n"
    )


def test_scopes_load_nothing_of_the_leak_detector() -> None:
    program = """
import disposescope as ds
@ds.dispose_scope()
def total():
    return (ds.arange(4) * 2).sum()
with ds.dispose_scope() as scope:
    packed = ds.pack_sequence([ds.ones(3), ds.ones(2)])
    scope.move_to_outer(packed)
    total()
try: packed.dispose(); packed.data
except ds.DisposedError: pass
try:
    with ds.dispose_scope(): kept = ds.ones(3); raise MemoryError
except MemoryError as error:
    assert "Tensor (open a LeakDetector to learn the lines)" in error.__notes__[0], error.__notes__
ds.statistics(), ds.arena_statistics()
print(loaded("disposescope.leaks"))
"""
    assert run_program(LOADED + program) == "[]\n"


@pytest.mark.long
@pytest.mark.parametrize("framework", ["torch", "jax.numpy"])
def test_scopes_load_nothing_of_the_leak_detector_for_other_frameworks(framework: str) -> None:
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    program = f"""
import {framework} as framework
import disposescope as ds
with ds.dispose_scope() as scope:
    tensor = framework.ones(3) + 1
    assert tensor in scope
try: tensor + 1
except ds.DisposedError: pass
else: raise AssertionError
print(loaded("disposescope.leaks"))
"""
    assert run_program(LOADED + program) == "[]\n"


def test_a_detector_that_is_the_first_thing_used_sees_every_framework() -> None:
    program = """
import numpy as np
from disposescope import LeakDetector
with LeakDetector() as detector:
    array = np.ones(1000)
    import disposescope as ds
    tensor = ds.zeros(7)
report = str(detector.report())
assert "1 × Tensor float64 (7,), 56 bytes" in report, report
assert ("1 × numpy.ndarray, 8.0 kB" in report) is ds.arena_statistics().available, report
"""
    assert run_program(program) == ""


def test_the_command_imports_no_library_before_it_is_known_what_it_is_to_do() -> None:
    program = """
import disposescope.leaks.commands.parser
import disposescope.leaks.running.session
assert not loaded("numpy", "torch", "jax")
"""
    assert run_program(LOADED + program) == ""


def test_what_was_born_before_the_detector_was_loaded_is_in_a_snapshot_without_a_line() -> None:
    program = """
import disposescope as ds
early = ds.ones(3)
assert "disposescope.leaks" not in sys.modules
[record] = ds.take_snapshot()
assert (str(record), record.site) == ("Tensor float64 (3,)", None), record
with ds.LeakDetector() as detector:
    late = ds.ones(4)
[record] = detector.take_snapshot()
assert record.site is not None
"""
    assert run_program(LOADED + program) == ""


@pytest.mark.long
def test_a_framework_that_was_taught_before_is_watched_by_the_first_detector() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    assert torch
    program = """
import torch
import disposescope as ds
model = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with ds.dispose_scope():
    torch.ones(3)
assert not loaded("disposescope.leaks")
with ds.LeakDetector() as detector:
    kept = torch.ones(5)
    model.register_buffer("state", torch.ones(6))
    for _ in range(3):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
assert [record.nbytes for record in detector.take_snapshot()] == [20], detector.report()
"""
    assert run_program(LOADED + program) == ""


@pytest.mark.long
def test_a_compiled_function_may_be_the_first_to_use_a_name() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    program = """
import torch
import disposescope as ds
seen = []
@torch.compile(backend="eager")
def compiled(tensor):
    with ds.dispose_scope() as scope:
        inner = tensor * 2
        result = scope.move_to_outer(inner + 1)
    return result
assert compiled(torch.ones(3)).tolist() == [3, 3, 3]
assert compiled(torch.ones(3)).tolist() == [3, 3, 3]
assert ds.current_scope() is None
"""
    assert run_program(program) == ""


def test_the_names_that_are_imported_for_type_checkers_are_the_public_ones() -> None:
    for package, others in ((disposescope, {"leaks"}), (disposescope.leaks, set[str]())):
        assert package.__file__ is not None
        [block] = [
            node for node in ast.parse(Path(package.__file__).read_text()).body
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        ]  # fmt: skip
        imported = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert imported - others == set(package.__all__) == set(" ".join(package._MODULES.values()).split())
        assert set(package.__all__) <= set(dir(package))
        assert all(getattr(package, name) is not None for name in package.__all__)


def test_a_star_import_has_every_public_name() -> None:
    assert (
        run_program("from disposescope import *\nimport disposescope\nassert {*disposescope.__all__} <= {*globals()}")
        == ""
    )


@pytest.mark.parametrize("name", disposescope.__all__)
def test_public_classes_and_functions_are_of_the_package_they_are_imported_from(name: str) -> None:
    public: Any = getattr(disposescope, name)
    assert public.__module__ == "disposescope"
    assert pickle.loads(pickle.dumps(public)) is public
    assert pydoc.render_doc(public)
    if inspect.isfunction(public):
        assert inspect.getsource(public).lstrip().startswith(("def ", "@"))


@pytest.mark.parametrize("name", ["ArenaStatistics", "DeviceStatistics", "Record", "ScopedCollate", "Statistics"])
def test_the_annotations_of_public_classes_are_those_of_the_modules_they_are_in(name: str) -> None:
    public: Any = getattr(disposescope, name)
    assert typing.get_type_hints(public).keys() == public.__annotations__.keys()


def test_an_error_that_nobody_catches_is_shown_by_its_public_name() -> None:
    with pytest.raises(disposescope.ScopeNestingError) as caught:
        disposescope.move_to_outer(1)
    assert "disposescope.ScopeNestingError: " in "".join(traceback.format_exception(caught.value))


def test_what_was_pickled_is_loaded_by_a_process_that_has_imported_nothing() -> None:
    pickled = pickle.dumps([disposescope.ones(3), disposescope.NotOwnedError("no")])
    program = f"import pickle\ntensor, error = pickle.loads({pickled!r})\nprint(tensor.sum(), error)"
    assert run_program(program) == "3.0 no\n"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("ds.dispose_scop", "module 'disposescope' has no attribute 'dispose_scop'. Did you mean: 'dispose_scope'?"),
        ("ds.leaks.Repor", "module 'disposescope.leaks' has no attribute 'Repor'. Did you mean: 'Report'?"),
        ("ds.__nothing__", "module 'disposescope' has no attribute '__nothing__'"),
    ],
)
def test_a_mistyped_name_is_refused_as_python_does_with_a_suggestion(code: str, message: str) -> None:
    command = [sys.executable, "-c", f"import disposescope as ds; {code}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stderr.splitlines()[-1] == f"AttributeError: {message}"


def test_a_mistyped_import_is_refused() -> None:
    with pytest.raises(ImportError, match="cannot import name 'dispose_scop' from 'disposescope'"):
        exec("from disposescope import dispose_scop")


def test_rooms_and_the_version_are_there_without_an_import_of_their_own() -> None:
    program = """
import disposescope as ds
assert ds.leaks.Report.__name__ == "Report" and ds.scopes.__name__ == "disposescope.scopes"
import importlib.metadata
try: version = importlib.metadata.version("disposescope")
except importlib.metadata.PackageNotFoundError: version = "0+unknown"
assert ds.__version__ == version
"""
    assert run_program(program) == ""


def test_no_module_is_hidden_by_a_function_of_its_name() -> None:
    for name in disposescope.__all__:
        getattr(disposescope, name)
    for info in pkgutil.walk_packages(disposescope.__path__, "disposescope."):
        if info.name in sys.modules:
            room, _, name = info.name.rpartition(".")
            found = getattr(importlib.import_module(room), name)
            assert isinstance(found, ModuleType), info.name
            assert found is sys.modules[info.name]
