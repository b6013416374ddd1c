"""Promises of optional frameworks: taught once, when the program has them, and never imported for it."""

from __future__ import annotations

import importlib
import sys

import pytest

import disposescope as ds
from disposescope.scopes import _arrivals


@pytest.fixture
def framework(tmp_path, monkeypatch):
    """The name of a module that can be imported, and a list of how often it was taught."""
    name = "a_framework_of_this_test"
    (tmp_path / f"{name}.py").write_text("complete = False\nimport sys\ncomplete = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    taught = []
    _arrivals.await_module(name, lambda: taught.append(sys.modules[name].complete))
    yield name, taught
    _arrivals.AWAITED.pop(name, None)
    sys.modules.pop(name, None)


def test_one_that_was_imported_before_is_taught_when_a_scope_is_entered(framework):
    name, taught = framework
    importlib.import_module(name)
    assert taught == []
    for _ in range(3):
        with ds.dispose_scope():
            assert taught == [True]


def test_one_that_is_imported_while_a_scope_is_open_is_taught_at_the_end_of_its_import(framework):
    name, taught = framework
    with ds.dispose_scope():
        module = importlib.import_module(name)
        assert taught == [True]
        assert "exec_module" not in vars(module.__loader__)
    with ds.dispose_scope():
        assert taught == [True]


def test_an_import_outside_of_scopes_is_not_touched(framework):
    name, taught = framework
    with ds.dispose_scope():
        pass
    importlib.import_module(name)
    assert taught == []


def test_an_import_that_fails_teaches_nothing_and_may_be_tried_again(framework, monkeypatch):
    name, taught = framework
    with ds.dispose_scope():
        with monkeypatch.context() as patch, pytest.raises(ModuleNotFoundError):
            patch.setattr(sys, "path", [])
            patch.setattr(sys, "path_importer_cache", {})
            importlib.import_module(name)
        assert taught == []
        importlib.import_module(name)
        assert taught == [True]


def test_nothing_is_imported_for_its_sake(framework):
    name, taught = framework
    with ds.dispose_scope():
        ds.zeros(3)
    assert name not in sys.modules
    assert taught == []
