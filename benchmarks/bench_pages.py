"""How much faster are operations on large CPU tensors with ``keep_pages=True``?"""

from __future__ import annotations

from typing import Any

import pytest

import disposescope as ds

torch = pytest.importorskip("torch", reason="measures PyTorch")


def chain(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor * 2 + 1 - 1) / 3


@pytest.mark.parametrize("keep_pages", [False, True])
@pytest.mark.parametrize("mebibytes", [16, 64, 128, 256])
def test_chain_of_four_operations(benchmark: Any, mebibytes: int, keep_pages: bool) -> None:
    benchmark.group = f"{mebibytes} MiB"
    tensor = torch.ones(mebibytes * 2**20 // 4)
    with ds.dispose_scope(keep_pages=keep_pages):
        assert torch.equal(chain(tensor), tensor * 2 / 3)
        benchmark(lambda: chain(tensor) is None)
