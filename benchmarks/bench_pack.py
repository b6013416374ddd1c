"""Packing, padding and unpacking PyTorch's tensors: this library's functions beside those of ``torch.nn.utils.rnn``."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import disposescope as ds

torch = pytest.importorskip("torch")
rnn = pytest.importorskip("torch.nn.utils.rnn")

SIZES = {
    "8 of 20x16": (8, 20, 16),
    "64 of 200": (64, 200, 0),
    "64 of 200x128": (64, 200, 128),
    "256 of 50x64": (256, 50, 64),
}
SIDES = {"ours": ds, "torch": rnn}

Call = Callable[[Any], Any]


def inputs(size: str) -> dict[str, Any]:
    count, longest, features = SIZES[size]
    lengths = [random.Random(0).randint(1, longest) for _ in range(count - 1)] + [longest]
    random.Random(1).shuffle(lengths)
    sequences = [torch.randn(length, *((features,) if features else ())) for length in lengths]
    return {
        "sequences": sequences,
        "lengths": torch.tensor(lengths),
        "padded": rnn.pad_sequence(sequences, batch_first=True),
        "packed": rnn.pack_sequence(sequences, enforce_sorted=False),
    }


CALLS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "pack_sequence": lambda side, given: side.pack_sequence(given["sequences"], enforce_sorted=False),
    "pack_padded_sequence": lambda side, given: side.pack_padded_sequence(
        given["padded"], given["lengths"], batch_first=True, enforce_sorted=False
    ),
    "pad_sequence": lambda side, given: side.pad_sequence(given["sequences"], batch_first=True),
    "pad_packed_sequence": lambda side, given: side.pad_packed_sequence(given["packed"], batch_first=True),
    "unpack_sequence": lambda side, given: side.unpack_sequence(given["packed"]),
    "unpad_sequence": lambda side, given: side.unpad_sequence(given["padded"], given["lengths"], batch_first=True),
}


def tensors_in(tree: Any) -> list[Any]:
    if isinstance(tree, (list, tuple)):
        return [tensor for child in tree for tensor in tensors_in(child)]
    return [] if tree is None else [tree]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("call", CALLS)
def test_forward(benchmark: Any, call: str, size: str, side: str) -> None:
    benchmark.group = f"{call}, {size}"
    given = inputs(size)
    results = [tensors_in(CALLS[call](each, given)) for each in SIDES.values()]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))
    benchmark(CALLS[call], SIDES[side], given)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("size", ["8 of 20x16", "64 of 200x128"])
@pytest.mark.parametrize("call", ["pack_sequence", "pad_sequence"])
def test_forward_and_backward(benchmark: Any, call: str, size: str, side: str) -> None:
    benchmark.group = f"{call} with gradients, {size}"
    given = inputs(size)
    for sequence in given["sequences"]:
        sequence.requires_grad_()

    def both_ways() -> Any:
        result = CALLS[call](SIDES[side], given)
        data = result[0] if isinstance(result, tuple) else result
        return torch.autograd.grad(data, given["sequences"], torch.ones_like(data))

    benchmark(both_ways)


@pytest.mark.parametrize("side", SIDES)
def test_packing_in_a_scope(benchmark: Any, side: str) -> None:
    benchmark.group = "pack_sequence in a scope, 64 of 200x128"
    given = inputs("64 of 200x128")
    with ds.dispose_scope():
        benchmark(CALLS["pack_sequence"], SIDES[side], given)
