"""One copy of the package, in the main interpreter: others are refused, and the first works on."""

from __future__ import annotations

from typing import Final

from tests.programs import run_program

WORKS: Final = """
import gc, importlib, importlib.machinery, importlib.util, sys
import numpy as np
import disposescope as ds

def works():
    with ds.LeakDetector():
        with ds.dispose_scope() as scope:
            array, tensor = np.ones(1000), ds.ones(20) + 1
            assert ds.owner_of(array) is scope and ds.owner_of(tensor) is scope and scope.arena.blocks
        try: tensor + 1
        except ds.DisposedError as error: assert "born at <string>:9" in str(error), error
        else: raise AssertionError
    assert ds.current_scope() is None

works()
NAMES = ["scopes.compiled", "leaks.births.compiled", "tensors.arena.compiled"]
NAMES += ["tensors.torch.compiled"]
FILES = [("disposescope." + name, importlib.util.find_spec("disposescope." + name).origin) for name in NAMES]
"""

LOAD: Final = """
import importlib.machinery, importlib.util
def load(name, file):
    loader = importlib.machinery.ExtensionFileLoader(name, file)
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, file, loader=loader))
    loader.exec_module(module)

def refusal(work, *arguments):
    try: work(*arguments)
    except (ImportError, RuntimeError) as error: return str(error)
    raise AssertionError(arguments)
"""

SUBINTERPRETERS: Final = '''
import os, tempfile
try:
    import _interpreters as interpreters
    make = lambda isolated: interpreters.create("isolated" if isolated else "legacy")
except ImportError:
    import _xxsubinterpreters as interpreters
    make = lambda isolated: interpreters.create(isolated=isolated)

# What is printed there is lost where the interpreter is destroyed: a pipe tells.
read, write = os.pipe()
INSIDE = LOAD + f"""
import os, sys
sys.path[:] = {sys.path}
def package():
    import disposescope
said = [refusal(package)]
assert "numpy" not in sys.modules
for name, file in {FILES}:
    said.append(refusal(load, name, file))
for each in said:
    assert "main interpreter only" in each or "does not support loading in subinterpreters" in each, each
assert "main interpreter only" in said[0], said
os.write({write}, str(len(said)).encode())
"""
for isolated in (True, False, True, False):
    other = make(isolated)
    failed = interpreters.run_string(other, INSIDE)
    assert failed is None, failed
    interpreters.destroy(other)
    gc.collect()
    works()
print(os.read(read, 100).decode())
'''


def test_a_subinterpreter_is_refused_before_anything_is_imported_and_the_main_one_works_on():
    assert run_program(f"{WORKS}\nLOAD = {LOAD!r}\n{SUBINTERPRETERS}") == "5555\n"


def test_a_second_import_is_refused_and_the_first_works_on():
    program = """
first = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "disposescope"}
said = refusal(importlib.import_module, "disposescope")
assert "imported in this process already" in said, said
for name, file in FILES:
    said = refusal(load, name, file)
    assert "imported in this process already" in said, said
works()
sys.modules.update(first)
works()
"""
    # Those of PyTorch's part are loaded with PyTorch.
    assert run_program(f"{WORKS}{LOAD}\nfor name, file in FILES[3:]: load(name, file)\n{program}") == ""


def test_reloading_the_package_or_a_part_of_it_breaks_nothing():
    program = """
importlib.reload(ds)
works()
for name in ("tensors.tensor.arena_service", *NAMES[:3], "leaks.births.log"):
    importlib.reload(sys.modules["disposescope." + name])
    works()
"""
    assert run_program(f"{WORKS}{LOAD}{program}") == ""
