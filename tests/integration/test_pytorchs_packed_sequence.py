"""PyTorch's own test of ``PackedSequence``, each once plain and once with its body in a scope.

``pytorch/packed_sequence.py`` is ``test/nn/test_packed_sequence.py`` of PyTorch 2.6, unchanged; its
licence is beside it.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
# What PyTorch's own test suite needs.
pytest.importorskip("expecttest")

import disposescope as ds

pytestmark = pytest.mark.filterwarnings("ignore")


def vendored(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / "pytorch" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    # Its test cases look up their own module.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


PACKED = vendored("packed_sequence")
NAMES = [name for name in dir(PACKED.PackedSequenceTest) if name.startswith("test_")]


def in_scope(body):
    @functools.wraps(body)
    def scoped(*args):
        with ds.dispose_scope("test") as scope:
            body(*args)
            assert scope.outer is None

    return scoped


def in_two_scopes(body):
    @functools.wraps(body)
    def scoped(*args):
        with ds.dispose_scope("file"), ds.dispose_scope("test"):
            body(*args)

    return scoped


@pytest.mark.parametrize("wrap", [lambda body: body, in_scope, in_two_scopes], ids=["plain", "scope", "two scopes"])
def test_the_same_passes(wrap, subtests):
    assert len(NAMES) == 12
    for name in NAMES:
        with subtests.test(name):
            case = PACKED.PackedSequenceTest(name)
            case.setUp()
            try:
                wrap(getattr(case, name))()
            finally:
                case.tearDown()
                case.doCleanups()
