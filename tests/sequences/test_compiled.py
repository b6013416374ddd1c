"""Rows are moved as by a loop; nothing is written where memory, lengths and places do not fit."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest

from disposescope.sequences.compiled import move_rows


def ints(numbers: Any) -> np.ndarray:
    return np.array(numbers, np.int64)


def offsets(sizes: list[int]) -> np.ndarray:
    return ints([sum(sizes[:step]) for step in range(len(sizes))])


@pytest.mark.parametrize("seed", range(60))
def test_rows_go_from_any_place_to_any_other(seed: int) -> None:
    chance = random.Random(seed)
    width, dtype = chance.choice(
        [(1, "u1"), (1, "i2"), (1, "f4"), (1, "f8"), (2, "c16"), (3, "u1"), (40, "f4"), (4, "f8")]
    )
    lengths = sorted([chance.randint(0 if seed % 2 else 1, 70) for _ in range(chance.choice([1, 3, 20]))], reverse=True)
    batch, time = len(lengths), max(*lengths, 1) + chance.choice([0, 0, 5])
    ranks, ones = np.arange(batch), np.arange(time)
    sizes = [sum(length > step for length in lengths) for step in range(time)]
    late = ints([time - length for length in lengths])
    # Each with the rows of a block, whether there is one for each sequence, the starts and the
    # steps.
    places = [
        (time, True, ranks * 0, ones),
        (sum(lengths), False, ranks, offsets(sizes)),
        (batch * time, False, ranks * time, ones),
        (batch * time, False, ranks, ones * batch),
        (batch * time, False, ranks * time + late, ones),
        (batch * time, False, ranks[::-1].copy(), ones * batch),
    ]
    numbers = np.random.default_rng(seed)
    for target in places:
        for source in places:
            given, made, wanted = (
                [numbers.integers(0, 99, (rows, width)).astype(dtype) for _ in range(batch if separate else 1)]
                for rows, separate, *_ in (source, target, target)
            )
            wanted = [block.copy() for block in made]
            for at, length in enumerate(lengths):
                for step in range(length):
                    from_row, to_row = (side[2][at] + side[3][step] for side in (source, target))
                    wanted[at * target[1]][to_row] = given[at * source[1]][from_row]
            nbytes = width * np.dtype(dtype).itemsize
            move_rows((tuple(made), *target[2:]), (tuple(given), *source[2:]), ints(lengths), nbytes)
            assert [block.tobytes() for block in made] == [block.tobytes() for block in wanted]


REFUSED: dict[str, dict[str, Any]] = {
    "more rows than the memory": {"lengths": ints([4, 1])},
    "a negative length": {"lengths": ints([3, -1])},
    "a length whose bytes overflow": {"lengths": ints([2**62, 1])},
    "lengths whose sum overflows": {"lengths": ints([2**63 - 1, 2**63 - 1])},
    "lengths of 32 bits": {"lengths": np.array([3, 1, 0], np.int32)},
    "a length too few": {"lengths": ints([3])},
    "a start beyond the memory": {"starts": ints([0, 5])},
    "a negative start": {"starts": ints([0, -1])},
    "a start that overflows": {"starts": ints([0, 2**63 - 1])},
    "a start too few": {"starts": ints([0])},
    "a step beyond the memory": {"steps": ints([0, 2, 4])},
    "a step that overflows": {"steps": ints([0, 2, 2**63 - 1])},
    "a negative step": {"steps": ints([-1, 0, 1])},
    "steps that descend": {"steps": ints([0, 3, 2])},
    "a step too few": {"steps": ints([0, 2])},
    "a row of no bytes": {"row": 0},
    "a row of negative bytes": {"row": -8},
    "a row of more bytes": {"row": 9},
    "a row of more bytes than there are": {"row": 2**62},
    "a sequence too few": {"sources": ()},
    "a sequence too many": {"sources": (np.arange(3.0), np.arange(1.0), np.arange(1.0))},
    "a sequence that is shorter": {"sources": (np.arange(2.0), np.arange(2.0))},
    "memory that is not contiguous": {"targets": (np.zeros(8)[::2],)},
    "memory that is read-only": {"targets": (np.broadcast_to(np.float64(1), 4),)},
    "memory of no kind": {"targets": (object(),)},
    "a list": {"targets": [np.zeros(4)]},
}


def moved(targets: Any, sources: Any, lengths: Any, starts: Any = None, steps: Any = None, row: int = 8) -> None:
    starts = ints([0, 1]) if starts is None else starts
    steps = ints([0, 2, 3]) if steps is None else steps
    move_rows((targets, starts, steps), (sources, ints([0, 0]), ints([0, 1, 2])), lengths, row)


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_and_nothing_is_written(case: str) -> None:
    sources = (np.arange(1.0, 4.0), np.arange(9.0, 10.0))
    given: dict[str, Any] = {"targets": (np.zeros(4),), "sources": sources, "lengths": ints([3, 1])}
    moved(**given)
    assert given["targets"][0].tolist() == [1, 9, 2, 3]
    given["targets"] = (np.zeros(4),)
    given |= REFUSED[case]
    with pytest.raises((ValueError, BufferError, TypeError, AttributeError)):
        moved(**given)
    assert not any(block.any() for block in given["targets"] if isinstance(block, np.ndarray) and block.base is None)


def copied(target: Any, source: Any, rows: int, row: int) -> None:
    start, steps = ints([0]), np.arange(rows)
    move_rows(((target,), start, steps), ((source,), start, steps), ints([rows]), row)


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
            copied(made, tensor, 2, tensor.element_size())
        assert not made.any()


def test_sequences_without_memory_are_moved_where_they_are_empty() -> None:
    torch = pytest.importorskip("torch")
    made = torch.zeros(4)
    steps = np.arange(2)
    given = (torch.empty(0), torch.ones(2))
    move_rows(((made,), ints([0, 2]), steps), (given, ints([0, 0]), steps), ints([0, 2]), 4)
    assert made.tolist() == [0, 0, 1, 1]


def test_buffers_are_given_back_also_after_a_refusal() -> None:
    for lengths in ([2], [3]):
        target, source = bytearray(2), bytearray(b"ab")
        try:
            copied(target, source, *lengths, 1)
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
            copied(made, source, source.size, 8)
            if not np.array_equal(made, source):
                failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
