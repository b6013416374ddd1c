"""Python imports this file at its start in the child processes of a watched program.

It signs the process in, imports the ``sitecustomize`` of the installation, which it hides, and
waits for NumPy, PyTorch or JAX: a program that imports none of them has no tensors, and starts as
fast as ever. At the first of them it imports disposescope, which joins the session that the
environment names.

It imports nothing that an interpreter has not loaded at its start, and any Python from 3.6 runs it.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

# The entry of this folder in sys.path.
_HERE = os.path.dirname(__file__)


class _AtNumpy:
    """An import hook that imports disposescope at the first import of NumPy, PyTorch or JAX.

    It finds no modules itself. It acts when a module is made, not when it is found: programs also
    look for libraries that they never import.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(
        self, name: str, path: "Sequence[str] | None", target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return the spec of other finders for NumPy, PyTorch or JAX, with its loader changed."""
        if name not in ("numpy", "torch", "jax"):
            return None
        spec = self._found(name, path, target)
        if spec is not None and hasattr(spec.loader, "exec_module") and hasattr(spec.loader, "create_module"):
            if name == "numpy":
                self._join_after(spec.loader)
            else:
                # They import NumPy while they are being imported themselves. To join then would be
                # too late to watch them.
                self._join_before(spec, path, target)
        return spec

    def _found(self, name: str, path: "Any", target: "Any") -> "ModuleSpec | None":
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            spec = None if finder is self or find_spec is None else find_spec(name, path, target)
            if spec is not None:
                return spec  # type: ignore[no-any-return]  # finders of other packages are untyped
        return None

    def _join_after(self, loader: "Any") -> None:
        execute = loader.exec_module

        def exec_module(module: "ModuleType") -> None:
            loader.exec_module = execute
            execute(module)
            # Python sets it next. Until then NumPy counts as being imported, and would not be
            # watched.
            module.__spec__._initializing = False  # type: ignore[union-attr]  # a module that is executed has a spec
            self._join()

        loader.exec_module = exec_module

    def _join_before(self, spec: "ModuleSpec", path: "Any", target: "Any") -> None:
        loader: Any = spec.loader
        create = loader.create_module

        def create_module(spec: "ModuleSpec") -> "ModuleType | None":
            loader.create_module = create
            self._join()
            # disposescope has an import hook for the same module now: take its loader.
            found = self._found(spec.name, path, target)
            if found is not None and spec.loader is loader:
                spec.loader = found.loader
            return create(spec)  # type: ignore[no-any-return]  # loaders of other packages are untyped

        loader.create_module = create_module

    def _join(self) -> None:
        if self not in sys.meta_path:
            return
        sys.meta_path.remove(self)
        try:
            # A note for the session: if this process leaves no report, it is unwatched. The process
            # may be a fork of the one that signed in.
            with open(os.path.join(self._folder, f"arrays-{os.getpid()}"), "w", encoding="utf-8") as file:
                file.write(" ".join(getattr(sys, "orig_argv", sys.argv)))
        except OSError:
            # The session is over.
            return
        if "disposescope" not in sys.modules:
            try:
                __import__("disposescope")
            except Exception:
                # An interpreter without disposescope, or with an old one: the note tells it.
                return


def _sign_in() -> None:
    # The variable as `children.py` writes it.
    kind, _, value = os.environ.get("PYTHONDISPOSESCOPE", "").partition(":")
    token, _, folder = value.partition(":")
    if kind != "session" or not os.path.isdir(folder):
        return
    try:
        open(os.path.join(folder, f"python-{token}-{os.getpid()}"), "w").close()
    except OSError:
        return
    sys.meta_path.insert(0, _AtNumpy(folder))


def _import_the_other() -> None:
    """Import the ``sitecustomize`` of the installation, if there is one."""
    this = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if this is not None:
            sys.modules.setdefault("sitecustomize", this)


if __name__ == "sitecustomize":
    sys.path[:] = [entry for entry in sys.path if entry != _HERE]
    try:
        _import_the_other()
    finally:
        _sign_in()
