"""Pages are kept for as long as a scope asks, and returned at the last exit."""

from __future__ import annotations

import subprocess
import sys

import pytest

import disposescope as ds
from disposescope.scopes.base import process as _pages

needs_glibc = pytest.mark.skipif(not _pages.can_keep_pages(), reason="a setting of the GNU C library")

FAULTS = """
import resource
import disposescope as ds

def faults_of_large_blocks(blocks=20, nbytes=64 * 2**20):
    # Made and freed by the C allocator alone: a bytearray's memory comes from it, and calloc leaves
    # fresh pages untouched.
    bytes(bytearray(nbytes))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(blocks):
        bytearray(nbytes)[::4096] = b"1" * (nbytes // 4096)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

plain = faults_of_large_blocks()
with ds.dispose_scope(keep_pages=True):
    kept = faults_of_large_blocks()
again = faults_of_large_blocks()
import psutil
print(plain, kept, again, psutil.Process().memory_info().rss)
"""


@pytest.mark.long
@needs_glibc
def test_large_blocks_are_not_faulted_in_again_while_pages_are_kept_and_are_returned_after() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    plain, kept, again, rss = (int(word) for word in done.stdout.split())
    assert kept < plain / 2
    assert again > kept
    assert rss < 128 * 2**20


@needs_glibc
def test_nested_scopes_ask_once_each_and_the_last_one_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[bool] = []
    monkeypatch.setattr(_pages, "trim", lambda: trims.append(True))
    with ds.dispose_scope(keep_pages=True):
        with ds.dispose_scope(keep_pages=True) as inner:
            inner.close()
        assert len(_pages._askers) == 1
        assert not trims
    assert len(_pages._askers) == 0
    assert trims == [True]


@needs_glibc
def test_a_scope_that_was_never_entered_has_nothing_to_return() -> None:
    ds.dispose_scope(keep_pages=True).close()
    assert len(_pages._askers) == 0


def test_another_c_library_gets_a_warning_and_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pages, "_GLIBC", None)
    with (
        pytest.warns(RuntimeWarning, match="keep_pages has no effect here"),
        ds.dispose_scope(keep_pages=True) as scope,
    ):
        assert not scope.closed
    assert not _pages.can_keep_pages()
    assert not _pages.trim()
    assert len(_pages._askers) == 0


@needs_glibc
def test_the_decorator_keeps_the_option() -> None:
    @ds.dispose_scope(keep_pages=True)
    def asked() -> int:
        return len(_pages._askers)

    assert asked() == 1
    assert len(_pages._askers) == 0
