"""Scopes: blocks of code that own what is born in them.

Nothing here knows a library of tensors: each type of tensor has a `Kind` that says how it is
released. Read `kinds`, `context`, `identity`, `ownership` and `scope` in this order.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

__all__ = [
    "load_extension",
]


def _is_main_interpreter() -> bool:
    threads: Any = import_module("_thread")
    if hasattr(threads, "_is_main_interpreter"):  # since Python 3.12
        return bool(threads._is_main_interpreter())
    interpreters: Any = import_module("_xxsubinterpreters")
    return bool(interpreters.get_current() == interpreters.get_main())


def load_extension(name: str) -> Any:
    """Import a compiled module of the package and return it.

    Parameters
    ----------
    name : str
        The full name of the module, such as ``"disposescope.scopes.compiled"``.

    Raises
    ------
    ImportError
        It was not built, this is a subinterpreter, or Python has no global interpreter lock.
    """
    if not _is_main_interpreter():
        raise ImportError("disposescope works in the main interpreter only, and this is a subinterpreter", name=name)
    # Windows has no ``sys.abiflags`` before Python 3.14.
    if "free-threading" in sys.version:
        raise ImportError(
            "disposescope does not support free-threaded builds of Python: "
            "its compiled parts rely on the global interpreter lock",
            name=name,
        )
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ImportError(
            f"{name} has not been built for this Python: run `pip install -e .` in the checkout of disposescope",
            name=name,
        ) from None


# Imported here, before any module of this package imports it: if it was not built, this raises the
# error that says what to do.
load_extension(f"{__name__}.compiled")
