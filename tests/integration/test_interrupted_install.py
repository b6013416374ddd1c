"""A framework whose installation is interrupted, anywhere, is installed by the next scope.

Steps of it that are done again do no harm.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

INTERRUPTIONS = """
import contextlib, os, sys
import disposescope as ds
from disposescope.scopes import framework as room


class Interruption:
    def __init__(self, number, folders):
        self.left, self.folders, self.place = number, folders, None

    def lines(self, frame, event, argument):
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self.lines

    def calls(self, frame, event, argument):
        code = frame.f_code
        file = os.path.realpath(code.co_filename)
        if code.co_name.startswith("<") or not file.startswith(self.folders):
            return None
        return self.lines


def interrupt_everywhere(*folders):
    # One more line each time: what is done again must not hurt.
    number = 0
    while True:
        number += 1
        interruption = Interruption(number, folders)
        sys.settrace(interruption.calls)
        try:
            with contextlib.suppress(KeyboardInterrupt), ds.dispose_scope("interrupted"):
                pass
        finally:
            sys.settrace(None)
        if interruption.place is None:
            return number


ROOM = os.path.realpath(room.__file__)
"""

OWN = """
import types

class Thing:
    value = 1

library = types.ModuleType("a_library")
sys.modules["a_library"] = library
calls = []


class Adapter(room.Framework):
    module = "a_library"

    @property
    def kinds(self):
        return [ThingKind()]

    def install(self):
        calls.append("install")

    def scope_entered(self, scope):
        calls.append("entered")

    def scope_left(self, scope):
        calls.append("left")

    def find_births(self, scope):
        calls.append("asked")

    def children(self, node):
        return None

    def role_of_code(self, code, module):
        return None


from disposescope.frameworks import Kind

class ThingKind(Kind):
    cls = Thing
    name = "Thing"

    def release(self, thing):
        thing.value = None


room.register(Adapter())
assert interrupt_everywhere(ROOM) > 10
assert calls.count("install") > 1
del calls[:]
with ds.dispose_scope() as scope:
    thing = scope.attach(Thing())
assert thing.value is None
assert (calls.count("entered"), calls.count("left"), calls.count("install")) == (1, 1, 0), calls
assert [type(each) for each in room.FRAMEWORKS.with_own("role_of_code")].count(Adapter) == 1
"""

JAX = """
import jax, jax.numpy as jnp
jnp.ones(3).block_until_ready()
from disposescope.tensors.jax import install
folder = os.path.dirname(os.path.realpath(install.__file__)) + os.sep
assert interrupt_everywhere(ROOM, folder) > 50
with ds.dispose_scope() as outer:
    with ds.dispose_scope() as scope:
        made = [jnp.ones(3) + 1, jnp.asarray([1.0, 2.0]), jax.jit(lambda x: x * 3)(jnp.ones(2))]
        assert all(array in scope for array in made)
        scope.move_to_outer(made[0])
    assert [ds.is_disposed(array) for array in made] == [False, True, True]
    try:
        made[1] + 1
    except ds.DisposedError:
        pass
    else:
        raise AssertionError("a disposed array was used")
with ds.LeakDetector() as detector:
    kept = jnp.ones(1000)
    assert [seen.nbytes for seen in detector.memory() if seen.kind == "jax.Array"] == [4000]
"""

NUMPY = """
import numpy as np
from disposescope.tensors.tensor import framework
assert interrupt_everywhere(ROOM, os.path.realpath(framework.__file__)) > 10
with ds.LeakDetector() as detector, ds.dispose_scope():
    kept = np.ones(5000)
    assert [seen.nbytes for seen in detector.memory() if seen.kind == "numpy.ndarray"] == [40000]
"""


@pytest.mark.long
@pytest.mark.parametrize("program", [OWN, NUMPY, JAX], ids=["own", "numpy", "jax"])
def test_an_interrupt_anywhere_is_made_up_for_by_the_next_scope(program: str) -> None:
    if program is JAX and find_spec("jax") is None:
        pytest.skip("JAX is not installed")
    done = subprocess.run([sys.executable, "-c", INTERRUPTIONS + program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


FAILING = """
import sys, types
import disposescope as ds
from disposescope.frameworks import Framework, register

sys.modules["a_library"] = types.ModuleType("a_library")
installed = []


class Failing(Framework):
    module = "a_library"

    def install(self):
        raise OSError("no card")


class Working(Framework):
    module = "a_library"

    def install(self):
        installed.append(self)


register(Failing())
register(Working())
try:
    with ds.dispose_scope():
        raise AssertionError("the block ran")
except OSError as error:
    [said] = error.__notes__
assert said.startswith("scopes do not own what a_library makes: "), said
with ds.dispose_scope():
    pass
assert len(installed) == 1
with ds.LeakDetector() as detector:
    pass
assert detector.report().unwatched == ("a_library: what it makes",), detector.report().unwatched
"""


def test_one_that_raises_says_once_what_scopes_are_without_and_keeps_no_other_from_being_installed() -> None:
    done = subprocess.run([sys.executable, "-c", FAILING], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
