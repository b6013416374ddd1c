"""What holds after every test: no scope is current, nobody listens, NumPy has its handler, counters start from zero."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import disposescope as ds
from disposescope.scopes._current import CURRENT
from disposescope.scopes._instruments import LISTENERS

handler_name: Any = np._core.multiarray.get_handler_name  # type: ignore[attr-defined]


@pytest.fixture(scope="session", autouse=True)
def what_was_imported_is_not_collected_again() -> None:
    # The tests below collect often, and a collection looks at every object of PyTorch each time unless it is frozen.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    gc.collect()
    ds.reset_statistics()
    before = CURRENT.get(), list(LISTENERS), handler_name()
    yield
    assert (CURRENT.get(), list(LISTENERS), handler_name()) == before
