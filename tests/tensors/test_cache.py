"""Memory that is kept for reuse is returned on request."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

import disposescope as ds
from disposescope.scopes.base import process as _pages


@pytest.mark.skipif(not _pages.can_keep_pages(), reason="a setting of the GNU C library")
def test_pages_that_a_scope_keeps_are_returned_before_its_end() -> None:
    code = """
import psutil, disposescope as ds
rss = lambda: psutil.Process().memory_info().rss
with ds.dispose_scope(keep_pages=True):
    bytearray(256 * 2**20)[::4096] = b"1" * 65536
    kept = rss()
    ds.empty_cache()
    print(kept - rss())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 200 * 2**20


@pytest.mark.parametrize("initialized", [True, False])
def test_the_cuda_cache_is_emptied_only_where_the_program_uses_cuda(
    monkeypatch: pytest.MonkeyPatch, initialized: bool
) -> None:
    emptied: list[bool] = []
    cuda = SimpleNamespace(is_initialized=lambda: initialized, empty_cache=lambda: emptied.append(True))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    ds.empty_cache()
    assert emptied == [True] * initialized
