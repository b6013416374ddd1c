"""How long do packing, padding and unpacking take beside ``torch.nn.utils.rnn``?

Run as a script it prints a row for each function and sort of input, with the ratio (this library's
time divided by PyTorch's) over all shapes, and the worst cells; `--all` prints every cell.
`--memcpy` compares one shape with a plain copy of its memory instead. Under pytest it times a few
shapes.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

import disposescope as ds

torch = pytest.importorskip("torch")
rnn = pytest.importorskip("torch.nn.utils.rnn")

BATCHES = (1, 4, 32, 256)
LENGTHS = (1, 20, 500)
FEATURES = (0, 1, 8, 128)
SORTS = ("float32", "int64", "float32, a graph made", "float32, there and back")
PADDED_AT_MOST = 64 << 20
"""Bytes."""

Call = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """One case: a function, its arguments, and whether a scope is open."""

    function: str
    sort: str
    batch: int
    longest: int
    features: int
    batch_first: bool
    enforce_sorted: bool
    scoped: bool

    def __str__(self) -> str:
        options = [
            "(batch, time)" if self.batch_first else "(time, batch)",
            "sorted" if self.enforce_sorted else "unsorted",
            *(["in a scope"] if self.scoped else []),
        ]
        return (
            f"{self.function}, {self.batch} of up to {self.longest}x{self.features} {self.sort}, {', '.join(options)}"
        )


def lengths_of(cell: Cell) -> list[int]:
    chance = random.Random(cell.batch * 1000 + cell.longest)
    lengths = [chance.randint(1, cell.longest) for _ in range(cell.batch - 1)] + [cell.longest]
    if cell.enforce_sorted:
        return sorted(lengths, reverse=True)
    chance.shuffle(lengths)
    return lengths


def flat(tree: Any) -> list[Any]:
    if isinstance(tree, (list, tuple)):
        return [tensor for child in cast("list[Any]", tree) for tensor in flat(child)]
    return [] if tree is None else [tree]


def call_of(cell: Cell) -> Call:
    """Return the call to time, given the module whose function it uses."""
    lengths = lengths_of(cell)
    trailing = (cell.features,) if cell.features else ()
    dtype = torch.int64 if cell.sort == "int64" else torch.float32
    graph = "," in cell.sort
    sequences = [(torch.randn(length, *trailing) * 8).to(dtype).requires_grad_(graph) for length in lengths]
    counts = torch.tensor(lengths)
    padded = rnn.pad_sequence(sequences, cell.batch_first).detach().requires_grad_(graph)
    packed = rnn.pack_sequence(sequences, cell.enforce_sorted)
    rows = packed[0].detach().requires_grad_(graph)
    packed = rnn.PackedSequence(rows, *packed[1:])
    first, presorted = cell.batch_first, cell.enforce_sorted
    # PyTorch's own unpad_sequence transposes its argument in place.
    upright = padded if first else padded.detach().transpose(0, 1).contiguous().requires_grad_(graph)
    calls: dict[str, tuple[Call, list[Any]]] = {
        "pack_sequence": (lambda side: side.pack_sequence(sequences, presorted), sequences),
        "pack_padded_sequence": (lambda side: side.pack_padded_sequence(padded, counts, first, presorted), [padded]),
        "pad_sequence": (lambda side: side.pad_sequence(sequences, first), sequences),
        "pad_packed_sequence": (lambda side: side.pad_packed_sequence(packed, first), [rows]),
        "unpack_sequence": (lambda side: side.unpack_sequence(packed), [rows]),
        "unpad_sequence": (lambda side: side.unpad_sequence(upright, counts, True), [upright]),
    }
    call, leaves = calls[cell.function]
    if cell.sort != SORTS[3]:
        return call
    weights = [torch.ones_like(tensor) for tensor in flat(call(rnn)) if tensor.requires_grad]

    def there_and_back(side: Any) -> Any:
        moved = [tensor for tensor in flat(call(side)) if tensor.requires_grad]
        return torch.autograd.grad(moved, leaves, weights)

    return there_and_back


def seconds(call: Call, side: Any, times: int) -> float:
    # Count the time of this thread alone, which does all of the work.
    start = time.thread_time()
    for _ in range(times):
        result = call(side)
        del result
    return (time.thread_time() - start) / times


def measure(cell: Cell, rounds: int) -> tuple[float, float, float]:
    """Return the median ratio of neighbouring turns, the ratio of minima, and PyTorch's median.

    PyTorch's median is in microseconds.
    """
    torch.manual_seed(0)
    call = call_of(cell)
    scope = ds.dispose_scope() if cell.scoped else None
    if scope is not None:
        scope.__enter__()
    try:
        ours, theirs = flat(call(ds)), flat(call(rnn))
        if not all(torch.equal(mine, own) for mine, own in zip(ours, theirs, strict=True)):
            raise AssertionError(f"the results differ: {cell}")
        times = max(1, min(50, int(1e-4 / min(seconds(call, rnn, 2), seconds(call, rnn, 2)))))
        taken: dict[Any, list[float]] = {ds: [], rnn: []}
        for number in range(rounds if times > 1 else max(7, rounds // 2)):
            for side in (ds, rnn) if number % 2 else (rnn, ds):
                taken[side].append(seconds(call, side, times))
    finally:
        if scope is not None:
            scope.close()
    # Neighbouring turns run at the same speed of the machine, which may change over all turns.
    ratio = statistics.median(mine / own for mine, own in zip(taken[ds], taken[rnn], strict=True))
    return ratio, min(taken[ds]) / min(taken[rnn]), statistics.median(taken[rnn]) * 1e6


def grid(functions: tuple[str, ...], scoped: tuple[bool, ...] = (False, True)) -> Iterator[Cell]:
    for function, sort, inside in itertools.product(functions, SORTS, scoped):
        shapes = itertools.product(BATCHES, LENGTHS, FEATURES, (True, False), (True, False))
        for batch, longest, features, batch_first, enforce_sorted in shapes:
            laid_out = batch_first or function in ("pack_padded_sequence", "pad_sequence", "pad_packed_sequence")
            ordered = enforce_sorted or function not in ("pad_sequence", "unpad_sequence")
            if laid_out and ordered and batch * longest * max(1, features) * 8 <= PADDED_AT_MOST:
                yield Cell(function, sort, batch, longest, features, batch_first, enforce_sorted, inside)


FUNCTIONS = (
    "pack_sequence",
    "pack_padded_sequence",
    "pad_sequence",
    "pad_packed_sequence",
    "unpack_sequence",
    "unpad_sequence",
)
SIZES = {"8 of 20x16": (8, 20, 16), "64 of 200": (64, 200, 0), "64 of 200x128": (64, 200, 128)}


@pytest.mark.parametrize("side", ["ours", "torch"])
@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_sequences(benchmark: Any, function: str, size: str, sort: str, side: str) -> None:
    benchmark.group = f"{function}, {size} {sort}"
    call = call_of(Cell(function, sort, *SIZES[size], batch_first=True, enforce_sorted=False, scoped=False))
    benchmark(call, ds if side == "ours" else rnn)


def compare_with_memcpy(rounds: int) -> None:
    """Print the time of packing and unpacking in turns with a copy of as many bytes.

    The batch has 64 sequences of up to 200x128 floats.
    """
    lengths = lengths_of(Cell("", "", *SIZES["64 of 200x128"], True, False, False))
    tensors = [torch.randn(length, 128) for length in lengths]
    arrays = [tensor.numpy() for tensor in tensors]
    packed: dict[str, Any] = {name: side.pack_sequence(given, False) for name, side, given in (
        ("arrays", ds, arrays), ("tensors", ds, tensors), ("PyTorch", rnn, tensors)
    )}  # fmt: skip
    source = packed["arrays"].data.numpy()
    target = np.empty_like(source)
    calls: dict[str, Callable[[], Any]] = {
        "memcpy": lambda: np.copyto(target, source),
        "memcpy to new memory": source.copy,
        "arrays: pack": lambda: ds.pack_sequence(arrays, False),
        "arrays: unpack": lambda: ds.unpack_sequence(packed["arrays"]),
        "tensors: pack": lambda: ds.pack_sequence(tensors, False),
        "tensors: unpack": lambda: ds.unpack_sequence(packed["tensors"]),
        "PyTorch: pack": lambda: rnn.pack_sequence(tensors, False),
        "PyTorch: unpack": lambda: rnn.unpack_sequence(packed["PyTorch"]),
    }
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            # Call once to warm up, because the other side ran before.
            call()
            start = time.thread_time()
            result = call()
            taken[name].append(time.thread_time() - start)
            del result
    copied = statistics.median(taken["memcpy"])
    print(f"{source.nbytes} bytes; the median of {rounds} turns, and how many times that is the median of a memcpy")
    for name, times in taken.items():
        print(f"{name:22} {statistics.median(times) * 1e6:9.1f} us {statistics.median(times) / copied:7.2f}")


def main() -> None:
    """Print the grid."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="print every cell")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each side for each cell")
    parser.add_argument("--every", type=int, default=1, help="take one cell of so many, drawn by chance")
    parser.add_argument("--function", action="append", choices=FUNCTIONS, help="only this one; may be repeated")
    parser.add_argument("--worst", type=int, default=20, help="how many of the worst cells to print")
    parser.add_argument("--memcpy", action="store_true", help="compare one shape with a plain copy of its memory")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memcpy:
        compare_with_memcpy(options.rounds)
        return
    functions = tuple(options.function or FUNCTIONS)
    cells = list(grid(functions))
    if options.every > 1:
        cells = random.Random(0).sample(cells, len(cells) // options.every)
    found: dict[Cell, tuple[float, float, float]] = {}
    for cell in cells:
        found[cell] = measure(cell, options.rounds)
        if options.all:
            print("{1:6.2f} {2:6.2f} {3:9.1f} us  {0}".format(cell, *found[cell]), flush=True)
    print("ratio: this library's time / PyTorch's; the median and the least of turns in one process, one thread")
    print(f"{'':66} {'cells':>5} {'mean':>5} {'worst':>5}  slower (ratio above 1.05 by both)")
    for function, sort, scoped in itertools.product(functions, SORTS, (False, True)):
        rows = [(c, r) for c, r in found.items() if (c.function, c.sort, c.scoped) == (function, sort, scoped)]
        if rows:
            mean = math.exp(statistics.fmean(math.log(result[0]) for _, result in rows))
            worst = max(min(result[:2]) for _, result in rows)
            slower = sum(min(result[:2]) > 1.05 for _, result in rows)
            name = f"{function}, {sort}{', in a scope' if scoped else ''}"
            print(f"{name:66} {len(rows):5} {mean:5.2f} {worst:5.2f}  {slower}")
    print("the worst cells: median, least, PyTorch's median")
    for cell, result in sorted(found.items(), key=lambda item: -min(item[1][:2]))[: options.worst]:
        print("{1:6.2f} {2:6.2f} {3:9.1f} us  {0}".format(cell, *result))


if __name__ == "__main__":
    main()
