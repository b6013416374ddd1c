"""What the arena takes from the system: little more than asked for; large pages where they help.

Zeros that the system has just given are not written.

Not for guard bytes and AddressSanitizer, which take more.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

import numpy as np
import pytest

import disposescope as ds
from disposescope.tensors.arena.extension import ARENA
from tests.programs import run_program
from tests.tensors.arrays import address_of

pytestmark = pytest.mark.skipif(ARENA.debug, reason="the arena has guards")

on_linux = pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="the system tells of memory in other ways")


@pytest.mark.parametrize("size", [256, 300, 450, 513, 641, 1000, 4097, 9000, 33_000, 81_920, 100_000, 131_072])
def test_at_most_a_quarter_of_a_small_block_is_slack(size: int) -> None:
    with ds.dispose_scope():
        held = [np.empty(size, "u1") for _ in range(32)]
        places = sorted(address_of(array) for array in held)
        nearest = min(after - before for before, after in itertools.pairwise(places))
        assert size <= nearest <= size * 1.25


@pytest.mark.parametrize("size", [131_073, 200_000, 262_144, 300_001, 1 << 20, 5_000_000, 33_000_001])
def test_at_most_a_quarter_of_a_large_block_is_slack(size: int) -> None:
    with ds.dispose_scope():
        ds.empty_cache()
        before = ds.arena_statistics().mapped_nbytes
        held = np.empty(size, "u1")
        assert size <= ds.arena_statistics().mapped_nbytes - before <= size * 1.25
        del held


def test_a_large_block_is_reused_for_what_nearly_fills_it_and_not_for_less() -> None:
    with ds.dispose_scope():
        ds.empty_cache()
        for size, is_reused in ((1_000_000, True), (950_000, True), (700_000, False)):
            where = address_of(np.empty(1_000_000, "u1"))
            assert (address_of(np.empty(size, "u1")) == where) is is_reused
            ds.empty_cache()


@on_linux
def test_zeros_in_memory_that_the_system_gave_just_now_are_not_written() -> None:
    told = run_program("""
import numpy as np, disposescope as ds

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096

with ds.dispose_scope():
    before = resident()
    zeros = np.zeros(256 << 20, "u1")
    print(resident() - before < 16 << 20, zeros[-1])
""")
    assert told == "True 0\n"


@on_linux
def test_large_pages_are_advised_for_large_blocks_alone() -> None:
    def flags(array: Any) -> list[str]:
        inside = False
        with open("/proc/self/smaps") as smaps:
            for line in smaps:
                first = line.split()[0]
                if "-" in first and not first.endswith(":"):
                    begin, end = (int(part, 16) for part in first.split("-"))
                    inside = begin <= address_of(array) < end
                elif inside and first == "VmFlags:":
                    return line.split()
        return []

    with ds.dispose_scope():
        ds.empty_cache()
        large, middling = np.empty(16 << 20, "u1"), np.empty(1 << 20, "u1")
        if os.path.exists("/sys/kernel/mm/transparent_hugepage"):
            assert "hg" in flags(large)
        assert flags(middling)
        assert "hg" not in flags(middling)
