"""Rows are moved as a loop over them would, and nothing is written where memory, lengths and order do not fit."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest

from disposescope.sequences.compiled import (
    BATCH_FIRST,
    LEFT,
    PACKED,
    SEQUENCES,
    TIME_FIRST,
    count_above,
    invert_permutation,
    move_rows,
)

PADDED = [layout + side for layout in (TIME_FIRST, BATCH_FIRST) for side in (0, LEFT)]


def ints(numbers: Any) -> np.ndarray:
    return np.array(numbers, np.int64)


def laid_out(rows: list[np.ndarray], layout: int, time: int, fill: np.ndarray) -> tuple[np.ndarray, ...]:
    """The memory of sequences given in the order of the batch, by hand."""
    if layout == SEQUENCES:
        return tuple(rows)
    if layout == PACKED:
        by_length = sorted(rows, key=len, reverse=True)
        steps = [row[step] for step in range(time) for row in by_length if step < len(row)]
        return (np.array(steps, fill.dtype).reshape(-1, fill.size),)
    batch = np.empty((len(rows), time, fill.size), fill.dtype)
    batch[:] = fill
    for place, row in enumerate(rows):
        start = time - len(row) if layout & LEFT else 0
        batch[place, start : start + len(row)] = row
    return (np.ascontiguousarray(batch if layout & ~LEFT == BATCH_FIRST else batch.swapaxes(0, 1)),)


@pytest.mark.parametrize("seed", range(60))
def test_rows_go_from_any_layout_to_any_other(seed: int) -> None:
    chance = random.Random(seed)
    width, dtype = chance.choice(
        [(1, "u1"), (1, "i2"), (1, "f4"), (1, "f8"), (2, "c16"), (3, "u1"), (40, "f4"), (4, "f8")]
    )
    lengths = [chance.randint(0 if seed % 2 else 1, 70) for _ in range(chance.choice([1, 3, 20]))]
    time = max(*lengths, 1) + chance.choice([0, 0, 5])
    rows = [np.random.default_rng(seed).integers(0, 99, (length, width)).astype(dtype) for length in lengths]
    fill = np.full(width, 7, dtype)
    order = ints(sorted(range(len(lengths)), key=lambda place: -lengths[place]))
    for source in (SEQUENCES, PACKED, *PADDED):
        for target in (SEQUENCES, PACKED, *PADDED):
            if source == target == PACKED:
                continue
            given = laid_out(rows, source, time, fill + 1)
            wanted = laid_out(rows, target, time, fill)
            made = tuple(np.full_like(block, 99) for block in wanted)
            move_rows(made, target, given, source, ints(lengths)[order], order, width * np.dtype(dtype).itemsize, fill)
            assert [block.tobytes() for block in made] == [block.tobytes() for block in wanted]


def test_without_a_fill_the_rest_is_zero() -> None:
    for layout in PADDED:
        padded = np.full(6, 9.0)
        move_rows((padded,), layout, (np.ones(1), np.ones(2)), SEQUENCES, ints([1, 2]), None, 8, None)
        assert sorted(padded.tolist()) == [0, 0, 0, 1, 1, 1]


REFUSED: dict[str, dict[str, Any]] = {
    "more rows than the memory": {"lengths": ints([4, 1])},
    "fewer rows than the memory": {"lengths": ints([2, 1])},
    "lengths that ascend": {"lengths": ints([1, 3])},
    "a negative length": {"lengths": ints([3, -1])},
    "a length whose bytes overflow": {"lengths": ints([2**62, 1])},
    "lengths whose sum overflows": {"lengths": ints([2**63 - 1, 2**63 - 1])},
    "lengths of 32 bits": {"lengths": np.array([3, 1, 0], np.int32)},
    "no lengths": {"lengths": ints([])},
    "an index out of bounds": {"order": ints([0, 2])},
    "a negative index": {"order": ints([0, -1])},
    "an index twice": {"order": ints([0, 0])},
    "an index too few": {"order": ints([0])},
    "the wrong place": {"order": ints([1, 0])},
    "a row of no bytes": {"row": 0},
    "a row of negative bytes": {"row": -8},
    "a row of other bytes": {"row": 7},
    "a row of more bytes than there are": {"row": 2**62},
    "a sequence too few": {"sources": (np.arange(3.0),)},
    "a sequence too many": {"sources": (np.arange(3.0), np.arange(1.0), np.arange(1.0))},
    "sequences of other lengths": {"sources": (np.arange(2.0), np.arange(2.0))},
    "both packed": {"layout": PACKED, "sources": (np.arange(4.0),)},
    "no such layout": {"layout": 9},
    "a negative layout": {"to": -1},
    "a side of what is not padded": {"layout": LEFT},
    "a side of what is packed": {"to": PACKED + LEFT},
    "padded memory of another size": {"to": TIME_FIRST, "targets": (np.zeros(7),)},
    "padded memory of too few steps": {"to": TIME_FIRST, "targets": (np.zeros(4),)},
    "a fill of more than a row": {"to": TIME_FIRST, "targets": (np.zeros(6),), "fill": np.zeros(2)},
    "memory that is not contiguous": {"targets": (np.zeros(8)[::2],)},
    "memory that is read-only": {"targets": (np.broadcast_to(np.float64(1), 4),)},
    "memory of no kind": {"targets": (object(),)},
    "a list": {"targets": [np.zeros(4)]},
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_and_nothing_is_written(case: str) -> None:
    given: dict[str, Any] = {
        "targets": (np.zeros(4),),
        "to": PACKED,
        "sources": (np.arange(1.0, 4.0), np.arange(1.0, 2.0)),
        "layout": SEQUENCES,
        "lengths": ints([3, 1]),
        "order": None,
        "row": 8,
        "fill": None,
    }
    move_rows(*given.values())
    assert given["targets"][0].tolist() == [1, 1, 2, 3]
    given["targets"] = (np.zeros(4),)
    given |= REFUSED[case]
    with pytest.raises((ValueError, BufferError, TypeError, AttributeError)):
        move_rows(*given.values())
    assert not any(block.any() for block in given["targets"] if isinstance(block, np.ndarray) and block.base is None)


def test_tensors_whose_memory_is_not_their_value_are_refused() -> None:
    torch = pytest.importorskip("torch")
    numbers = torch.ones(2, dtype=torch.complex64)
    for tensor in (
        numbers.conj(),
        numbers.conj().imag,
        torch.ones(2, device="meta"),
        torch.ones(4)[::2],
        torch.ones(2).to_sparse(),
        torch._efficientzerotensor((2,)),
    ):
        made = np.zeros(2 * tensor.element_size(), np.uint8)
        with pytest.raises((ValueError, RuntimeError)):
            move_rows((made,), SEQUENCES, (tensor,), SEQUENCES, ints([2]), None, tensor.element_size(), None)
        assert not made.any()


def test_sequences_without_memory_are_moved_where_they_are_empty() -> None:
    torch = pytest.importorskip("torch")
    made = torch.zeros(4)
    move_rows((made,), BATCH_FIRST, (torch.empty(0), torch.ones(2)), SEQUENCES, ints([0, 2]), None, 4, None)
    assert made.tolist() == [0, 0, 1, 1]


def test_buffers_are_given_back_also_after_a_refusal() -> None:
    for lengths in ([2], [3]):
        target, source = bytearray(2), bytearray(b"ab")
        try:
            move_rows((target,), SEQUENCES, (source,), SEQUENCES, ints(lengths), None, 1, None)
        except ValueError:
            assert lengths == [3]
        target.append(0)
        source.append(0)


def test_threads_move_at_once() -> None:
    source = np.arange(1 << 16, dtype=np.float64)
    failures: list[int] = []

    def work() -> None:
        for _ in range(50):
            made = np.zeros_like(source)
            move_rows((made,), SEQUENCES, (source,), SEQUENCES, ints([source.size]), None, 8, None)
            if not np.array_equal(made, source):
                failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("lengths", [[1], [3, 3, 2, 1], [5, 0, 0], [0], []])
def test_batch_sizes_count_the_lengths_above_each_step(lengths: list[int]) -> None:
    counts = np.empty(max(lengths, default=0), np.int64)
    count_above(counts, ints(lengths))
    assert counts.tolist() == [sum(length > step for length in lengths) for step in range(counts.size)]


@pytest.mark.parametrize("numbers", [[1, 2], [2, -1], [3, 1]])
def test_numbers_that_are_no_lengths_are_refused(numbers: list[int]) -> None:
    counts = ints([7, 7])
    with pytest.raises(ValueError, match="descending"):
        count_above(counts, ints(numbers))
    assert counts.tolist() == [7, 7]


def test_an_inverse_undoes_a_permutation() -> None:
    permutation = np.random.default_rng(0).permutation(20)
    inverse = np.empty(20, np.int64)
    invert_permutation(inverse, permutation)
    assert permutation[inverse].tolist() == list(range(20))
    for wrong in ([0, 0], [0, 2], [-1, 0], [0], [0, 1, 2]):
        with pytest.raises(ValueError, match="permutation"):
            invert_permutation(np.empty(2, np.int64), ints(wrong))
