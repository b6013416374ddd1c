"""Patches are undone and made again; forks find every lock free, whatever other threads are in."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
import warnings

import pytest

from disposescope.leaks.detector import collection as _collection
from disposescope.leaks.detector import watching as _watching
from disposescope.scopes import framework
from disposescope.scopes import identity as dead_composites
from disposescope.scopes.base import process
from disposescope.workspace import workspace as _workspace
from tests.programs import run_program

# Newer Pythons warn of a fork in a process that has threads.
FORK = """
import faulthandler, gc, os, sys, threading, types, warnings
warnings.simplefilter("ignore", DeprecationWarning)
faulthandler.dump_traceback_later(500, exit=True)
import disposescope as ds
"""


NEEDS_FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


def test_locks_are_acquired_in_the_order_in_which_threads_acquire_several():
    assert [lock for _, lock in process._FORKS.locks] == [
        process._installing,
        _watching._lock,
        framework.FRAMEWORKS._lock,
        _collection._lock,
        dead_composites.SHARING,
        process._pages_lock,
        _workspace._LOCK,
    ]


@NEEDS_FORK
def test_a_fork_waits_for_a_framework_that_is_being_taught_while_threads_begin_to_count():
    told = run_program(
        FORK
        + """
from disposescope.scopes.base import process
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
process.await_module("a_framework", teach)
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


@NEEDS_FORK
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


@NEEDS_FORK
def test_what_fails_at_a_fork_is_printed_and_stops_nothing_else():
    told = run_program(
        FORK
        + """
from disposescope.scopes.base.process import at_forks
sys.unraisablehook = lambda failed: print(*(str(error) for error in failed.exc_value.exceptions), flush=True)
def fail(): raise ValueError("this one")
at_forks(in_child=fail)
at_forks(in_child=lambda: print("the next one", flush=True))
at_forks(in_child=fail)
child = os.fork()
if child == 0:
    with ds.dispose_scope():
        os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    assert told == "the next one\nthis one\n7\n"


# Patches.


def patch(**others):
    row = {"library": "python", "name": "a name", "why": "a test", "tested": "1.0", "guard": "a guard"}
    return process.Patch(**{**row, "otherwise": "something follows", **others})


def doubled(function):
    return lambda: 2 * function()


@pytest.fixture
def module():
    module = types.ModuleType("a_module")
    module.one = lambda: 1
    return module


def test_an_attribute_is_replaced_put_back_and_replaced_again(module):
    patches, row, one = process.Patches(), patch(), module.one
    for _ in range(2):
        # After an interrupt all is done once more: it is not wrapped twice.
        assert patches.replace(row, module, "one", doubled)
        assert module.one() == 2
    assert patches.rows() == [process.PatchRow(row, True, ())]
    patches.restore_all()
    assert module.one is one
    assert patches.rows() == [process.PatchRow(row, False, ())]
    patches.install_all()
    assert module.one() == 2
    patches.restore(row)
    assert module.one is one


def test_what_a_class_inherits_is_inherited_again():
    class Base:
        def one():
            return 1

    class Derived(Base):
        pass

    patches = process.Patches()
    patches.replace(patch(), Derived, "one", doubled)
    assert (Base.one(), Derived.one()) == (1, 2)
    patches.restore_all()
    assert "one" not in vars(Derived)


def test_what_others_put_over_a_replacement_stays(module):
    patches, row = process.Patches(), patch()
    patches.replace(row, module, "one", doubled)
    module.one = theirs = doubled(module.one)
    patches.restore_all()
    assert module.one is theirs
    patches.replace(row, module, "one", doubled)
    assert module.one is theirs
    assert theirs() == 4


def test_what_others_replaced_in_between_is_wrapped_as_they_left_it(module):
    patches, row = process.Patches(), patch()
    patches.replace(row, module, "one", doubled)
    patches.restore(row)
    module.one = lambda: 5
    patches.replace(row, module, "one", doubled)
    assert module.one() == 10


def test_a_guard_that_does_not_hold_warns_once_and_changes_nothing(module):
    patches, row = process.Patches(), patch()
    with pytest.warns(RuntimeWarning) as caught:
        assert not patches.replace(row, module, "two", doubled)
    assert not patches.replace(row, module, "two", doubled)
    version = sys.version.partition(" ")[0]
    assert [str(warning.message) for warning in caught] == [
        f"python {version} is not known to disposescope (tested: 1.0): a_module has no two; something follows"
    ]
    assert not hasattr(module, "two")
    assert patches.rows() == [process.PatchRow(row, False, ("a_module has no two",))]


def test_a_guard_that_does_not_hold_raises_nothing_where_warnings_are_errors(module, capsys):
    patches, row = process.Patches(), patch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not patches.replace(row, module, "two", doubled)
    said = capsys.readouterr().err
    assert said.startswith("RuntimeWarning: python ")
    assert said.endswith(": a_module has no two; something follows\n")


def test_an_attribute_of_a_class_in_a_module_is_replaced_by_its_dotted_name(module):
    class Given:
        one = staticmethod(lambda: 1)

    module.Given = Given
    patches, row = process.Patches(), patch(warns=False)
    assert patches.replace(row, module, "Given.one", doubled)
    assert Given.one() == 2
    patches.restore(row)
    assert Given.one() == 1
    assert not patches.replace(row, module, "Missing.one", doubled)
    [found] = patches.rows()
    assert found.failures == ("a_module has no Missing.one",)


def test_a_change_is_made_and_undone_by_functions():
    patches, row, state = process.Patches(), patch(warns=False), []
    assert patches.change(row, lambda: state.append(1), state.clear)
    patches.restore_all()
    patches.restore_all()
    assert state == []
    patches.install_all()
    assert state == [1]
    assert not patches.change(row, lambda: False, state.clear)
    assert patches.rows() == [process.PatchRow(row, True, ("not so: a guard",))]


EVERY_PATCH = """
import importlib, multiprocessing, sys, warnings
import disposescope as ds
from disposescope.scopes.base import process
replaced = []
replace = process.Patches.replace
def remember(patches, patch, owner, name, wrap):
    given = owner, name
    *within, name = name.split(".")
    for part in within:
        owner = getattr(owner, part)
    before = vars(owner).get(name, "nothing")
    done = replace(patches, patch, *given, wrap)
    replaced.append((owner, name, before))
    assert vars(owner)[name] is not before
    return done
process.Patches.replace = remember
for name in {modules!r}:
    importlib.import_module(name)
from disposescope.leaks.detector.watching import count_handovers
from disposescope.leaks.running.children import watch_children
from disposescope.leaks.running.session import _watch_endings
count_handovers()
_watch_endings()
watch_children(lambda: None, lambda command: None)
with ds.LeakDetector(), ds.dispose_scope() as scope:
    made = make()
    assert made in scope
    process.PATCHES.restore_all()
for owner, name, before in replaced:
    assert vars(owner).get(name, "nothing") is before, (owner, name)
assert not any(row.is_installed for row in process.PATCHES.rows())
assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("disposescope")]
process.PATCHES.install_all()
for owner, name, before in replaced:
    assert vars(owner).get(name, "nothing") is not before, (owner, name)
for _ in range(2):
    with ds.LeakDetector() as detector, ds.dispose_scope() as scope:
        made = make()
        assert made in scope
        assert len(detector.take_snapshot()) == 1
for row in process.PATCHES.rows():
    assert not row.failures or any(name in row.patch.name for name in {known!r}), row
    assert row.is_installed or row.patch.library != {library!r} or "which are " in row.patch.name, row
print(len(replaced))
"""


MAKE_TENSORS = """
import torch
def make(): return torch.ones(3)
"""
BIRTHS_OF_TORCH = """
with ds.dispose_scope() as scope:
    made = make()
    process.PATCHES.restore_all()
    born = [make(), torch.nn.functional.relu(made), made.view(3), torch.nn.Parameter(made)]
    class Sub(torch.Tensor): pass
    born.append(made.as_subclass(Sub))
    assert made in scope
    assert not [tensor for tensor in born if tensor in scope]
    made.grad = torch.zeros(3)
    assert made.grad.numpy().sum() == 0 and made.data.untyped_storage().nbytes() == 12
    process.PATCHES.install_all()
    born = [make(), torch.nn.functional.relu(made), made.view(3), made.as_subclass(Sub), torch.from_numpy(made.numpy())]
    assert all(tensor in scope for tensor in born)
    # A gradient that is assigned is the parameter's.
    made.grad = given = torch.zeros(3)
    assert given not in scope
    packed = torch.nn.utils.rnn.pack_sequence([made])
    assert packed in scope
assert ds.is_disposed(born[-1]) and ds.is_disposed(packed)
"""


@pytest.mark.long
def test_every_patch_of_pytorch_is_put_back_and_made_again():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from disposescope.tensors.torch.exclusions import _hands_out_its_result
    from disposescope.tensors.torch.graphs.walk import SHOWS_SAVED

    modules = ["torch._dynamo", "torch.export", "torch.utils.data"]
    # PyTorch 2.5 has no such archives.
    modules += ["torch.export.pt2_archive._package"] * (
        importlib.util.find_spec("torch.export.pt2_archive") is not None
    )
    # Before 2.10 PyTorch does not show what its graphs saved, and before 2.12 not what compiled
    # functions return.
    known = [] if SHOWS_SAVED else ["_raw_saved_"]
    if not _hands_out_its_result(importlib.import_module("torch._dynamo.eval_frame")):
        known.append("_maybe_set_eval_frame")
    program = MAKE_TENSORS + EVERY_PATCH.format(modules=modules, library="torch", known=known) + BIRTHS_OF_TORCH
    assert int(run_program(program)) >= 25


def test_every_patch_of_jax_is_put_back_and_made_again():
    pytest.importorskip("jax", reason="JAX is not installed")
    program = "import jax.numpy\ndef make(): return jax.numpy.ones(3)\n" + EVERY_PATCH.format(
        modules=[], library="jax", known=[]
    )
    assert int(run_program(program)) >= 10
