"""The arena at the end of a process, through forks, and with its debug flag."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.programs import run_program


def test_arrays_that_are_alive_at_the_end_of_the_interpreter_do_no_harm() -> None:
    code = """
import numpy as np, disposescope as ds, threading, builtins
with ds.dispose_scope():
    builtins.kept = [np.ones(size) for size in (1, 1000, 1_000_000)]
class Late:
    def __del__(self):
        self.more = np.ones(100) + builtins.kept[0]
late = Late()
scope = ds.dispose_scope(); scope.__enter__()
more = np.ones(100_000)
def suspended():
    with ds.dispose_scope():
        yield np.ones(3)
generator = suspended(); array = next(generator)
"""
    assert run_program(code) == ""
    assert run_program(code, DISPOSESCOPE_ARENA_DEBUG="1") == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_parent_and_child_both_go_on_after_a_fork() -> None:
    told = run_program("""
import os, numpy as np, disposescope as ds
name = np._core.multiarray.get_handler_name
with ds.dispose_scope() as scope:
    arrays = [np.full(size, 7.0) for size in (10, 1000, 1_000_000)]
    child = os.fork()
    if child == 0:
        assert name() == "default_allocator", name()
        assert all((array == 7).all() for array in arrays)
        del arrays
        with ds.dispose_scope() as own:
            array = np.ones(1000)
            assert array in own and array.sum() == 1000
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert name() == "disposescope_arena"
    assert all((array == 7).all() for array in arrays) and arrays[0] in scope
print("both")
""")
    assert told == "both\n"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("view(array, array.size + 1)[-1] = 1", "written past the end"),
        ("late = view(array, array.size); del array; late[0] = 1; del late; array = np.empty(100)", "written after"),
    ],
)
def test_the_debug_flag_finds_writes_past_the_end_and_after_the_free(damage: str, message: str) -> None:
    code = f"""
import ctypes, numpy as np, disposescope as ds
def view(array, size):
    return (ctypes.c_double * size).from_address(array.ctypes.data)
with ds.dispose_scope():
    array = np.zeros(100)
    {damage}
    del array
"""
    process = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"DISPOSESCOPE_ARENA_DEBUG": "1"},
        capture_output=True,
        text=True,
    )
    assert process.returncode < 0
    assert message in process.stderr
