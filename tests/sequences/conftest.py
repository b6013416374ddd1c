"""After each test of sequences, no composite, no member of one and no open scope is left."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import disposescope as ds


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = ds.statistics().live
    ds.reset_statistics()
    yield
    if ds.statistics().live != before:
        gc.collect()
    assert ds.statistics().live == before
    assert ds.current_scope() is None
