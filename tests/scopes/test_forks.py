"""A fork finds every lock free, and its child works, whatever other threads are in."""

from __future__ import annotations

import os

import pytest

from disposescope.leaks.detector import collection as _collection
from disposescope.leaks.detector import watching as _watching
from disposescope.scopes import forks as _forks
from disposescope.scopes import identity as dead_composites
from disposescope.scopes import kinds as _arrivals
from disposescope.scopes.statistics import _lock as counters_lock
from tests.programs import run_program

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork"),
]

# Newer Pythons warn of a fork in a process that has threads.
FORK = """
import faulthandler, gc, os, sys, threading, types, warnings
warnings.simplefilter("ignore", DeprecationWarning)
faulthandler.dump_traceback_later(60, exit=True)
import disposescope as ds
"""


def test_locks_are_acquired_in_the_order_in_which_threads_acquire_several():
    assert [lock for _, lock in _forks._held] == [
        _arrivals._teaching,
        _watching._lock,
        _collection._lock,
        counters_lock,
        dead_composites.SHARING,
    ]


def test_a_fork_waits_for_a_framework_that_is_being_taught_while_threads_begin_to_count():
    told = run_program(
        FORK
        + """
from disposescope.scopes import kinds as _arrivals
teaching, forking = threading.Event(), threading.Event()
def teach():
    teaching.set()
    forking.wait()
    for _ in range(1000):
        thread = threading.Thread(target=ds.statistics)
        thread.start()
        thread.join()
def enter():
    with ds.dispose_scope():
        pass
_arrivals.await_module("a_framework", teach)
sys.modules["a_framework"] = types.ModuleType("a_framework")
thread = threading.Thread(target=enter)
thread.start()
teaching.wait()
os.register_at_fork(before=forking.set)
child = os.fork()
if child == 0:
    enter()
    os._exit(7)
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    assert told == "7\n"


def test_a_child_collects_garbage_although_a_thread_of_its_parent_looked_at_what_lives():
    told = run_program(
        FORK
        + """
from disposescope.leaks.detector.collection import collection_paused
inside, done = threading.Event(), threading.Event()
def look():
    with collection_paused():
        inside.set()
        done.wait()
before = gc.get_threshold()
thread = threading.Thread(target=look)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    with ds.LeakDetector() as detector:
        kept = ds.ones(3)
        assert len(detector.take_snapshot()) == 1
    os._exit(7 if gc.get_threshold() == before else 1)
done.set()
thread.join()
assert gc.get_threshold() == before
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    assert told == "7\n"
