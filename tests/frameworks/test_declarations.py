"""The classes that are said to keep tensors on purpose are there, under those names."""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec

import pytest

from disposescope.tensors.libraries import KEEPERS_OF

NAMES = [(library, name) for library, names in KEEPERS_OF.items() for name in names]


@pytest.mark.parametrize(("library", "name"), NAMES, ids=[name for _, name in NAMES])
def test_a_class_of_that_name_is_there(library: str, name: str) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} not installed: pip install -e '.[test-frameworks]'")
    module, _, cls = name.rpartition(".")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = getattr(import_module(module), cls)
    assert isinstance(found, type)
    # A class is known by the module that it was defined in.
    assert f"{found.__module__}.{found.__qualname__}" == name
