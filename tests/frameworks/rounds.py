"""What is put round each step of a program, and a comparison of what it computes then."""

from __future__ import annotations

import dataclasses
import gc
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final, TypeVar, final

import numpy as np
import pytest

import disposescope as ds

T = TypeVar("T")

LIBRARIES_WARN: Final = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
"""What a library says of itself, or of PyTorch, is no failure of a test here."""


def needs(*libraries: str) -> ModuleType:
    """Return the first of some libraries, imported; skip the test module where one is missing."""
    missing = [name for name in libraries if find_spec(name) is None]
    if missing:
        pytest.skip(
            f"{' and '.join(missing)} not installed: pip install -e '.[test-frameworks]'", allow_module_level=True
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        modules = [import_module(name) for name in libraries]
    return modules[0]


@final
@dataclasses.dataclass(frozen=True)
class Round:
    """What is put round a step: nothing, or a scope with given options.

    Calling it returns the block.
    """

    options: Mapping[str, Any] | None = None

    def __call__(self) -> AbstractContextManager[object]:
        return nullcontext() if self.options is None else ds.dispose_scope(**self.options)

    def function(self, step: Callable[..., T]) -> Callable[..., T]:
        """Return the function with the block round each of its calls, as a decorator has it."""
        return step if self.options is None else ds.dispose_scope(**self.options)(step)

    def out(self, tree: T) -> T:
        """Return a tree that a variable of the program carries to the next step.

        The program has to move it out of a scope with default options, and of no other.
        """
        return ds.move_to_outer(tree) if self.options == {} else tree


PLAIN: Final = Round()
SCOPE: Final = Round({})
KEEP: Final = Round({"escapes": "keep"})


def assert_same_as_plain(program: Callable[[Round], object], *rounds: Round) -> None:
    """Run a program without scopes and with them, and compare what it returns bit for bit."""
    expected = _as_bits(program(PLAIN))
    for step in rounds or (SCOPE, KEEP):
        gc.collect()
        found = _as_bits(program(step))
        assert ds.current_scope() is None
        assert found == expected, step


def _as_bits(tree: Any) -> object:
    """A tree with the bytes of its arrays, of whatever library, in their place."""
    if isinstance(tree, Mapping):
        return {str(key): _as_bits(value) for key, value in tree.items()}
    if isinstance(tree, Sequence) and not isinstance(tree, str):
        return [_as_bits(item) for item in tree]
    if hasattr(tree, "detach"):
        tree = tree.detach().cpu().numpy()
    if hasattr(tree, "__array__"):
        array = np.asarray(tree)
        return array.shape, str(array.dtype), array.tobytes()
    assert isinstance(tree, (int, float, bool, str, type(None))), type(tree)
    return repr(tree)
