"""Optional frameworks: taught once, when the program has them, and never imported for it."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import types

import pytest

import disposescope as ds
from disposescope.scopes.base import process


@pytest.fixture
def framework(tmp_path, monkeypatch):
    """The name of a module that can be imported, and a list of how often it was taught."""
    name = "a_framework_of_this_test"
    (tmp_path / f"{name}.py").write_text("complete = False\nimport sys\ncomplete = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    taught = []
    process.await_module(name, lambda: taught.append(sys.modules[name].complete))
    yield name, taught
    process.AWAITED.pop(name, None)
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


@pytest.fixture
def awaited(monkeypatch):
    """The name of a module that is there, and of which nothing has been taught."""
    name = "another_framework_of_this_test"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    yield name
    process.AWAITED.pop(name, None)


class Lock:
    """A lock that counts who asks for it."""

    def __init__(self, lock):
        self.lock, self.asked = lock, threading.Semaphore(0)

    def __enter__(self):
        self.asked.release()
        return self.lock.__enter__()

    def __exit__(self, *error):
        return self.lock.__exit__(*error)


def test_who_enters_a_scope_while_a_framework_is_taught_waits(awaited, monkeypatch):
    begun, go_on, order = threading.Event(), threading.Event(), []
    lock = Lock(process._installing)
    monkeypatch.setattr(process, "_installing", lock)

    def teach():
        begun.set()
        assert go_on.wait(500)
        with ds.dispose_scope():
            order.append("taught")
        process.await_module(awaited, lambda: order.append("taught more"))

    def enter(name):
        with ds.dispose_scope():
            order.append(name)

    process.await_module(awaited, teach)
    threads = [threading.Thread(target=enter, args=(name,)) for name in ("first", "second")]
    threads[0].start()
    assert begun.wait(500)
    assert lock.asked.acquire(timeout=500)
    threads[1].start()
    assert lock.asked.acquire(timeout=500)
    assert order == []
    go_on.set()
    for thread in threads:
        thread.join(500)
    assert order[:2] == ["taught", "taught more"]
    assert sorted(order[2:]) == ["first", "second"]
    assert awaited not in process.AWAITED


def test_a_framework_that_cannot_be_taught_is_not_tried_again(awaited):
    tried = []

    def teach():
        tried.append(awaited)
        raise RuntimeError("another version")

    process.await_module(awaited, teach)
    with pytest.raises(RuntimeError, match="another version"), ds.dispose_scope():
        pass
    with ds.dispose_scope():
        pass
    assert tried == [awaited]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_can_be_taught_that_was_forked_while_another_thread_taught(awaited):
    begun, forking = threading.Event(), threading.Event()

    def teach():
        begun.set()
        assert forking.wait(500)

    def enter():
        with ds.dispose_scope():
            pass

    process.await_module(awaited, teach)
    thread = threading.Thread(target=enter)
    thread.start()
    assert begun.wait(500)
    process.at_forks(before=forking.set)
    try:
        child = os.fork()
    finally:
        process._FORKS.before.remove(forking.set)
    if child == 0:
        with ds.dispose_scope():
            os._exit(int(awaited in process.AWAITED))
    assert os.waitpid(child, 0)[1] == 0
    thread.join()
