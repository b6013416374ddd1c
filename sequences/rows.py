"""Where the rows of sequences are, and their way from one place to another."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .adapter import Block, Integers
from .compiled import move_rows

__all__ = [
    "Rows",
    "counts_above",
    "move",
    "rows_of_packed",
    "rows_of_padded",
    "rows_of_sequences",
]


class Rows(NamedTuple):
    """Where rows are: row ``starts[i] + steps[t]`` of its block is step t of sequence i."""

    blocks: tuple[Block, ...]
    """One for each sequence, or one for all."""
    starts: Integers
    steps: Integers


def rows_of_sequences(blocks: list[Block], time: int) -> Rows:
    """Return where the rows of separate sequences are, none longer than `time`."""
    return Rows(tuple(blocks), np.zeros(len(blocks), np.int64), np.arange(time))


def rows_of_packed(data: Block, batch_sizes: Integers, ranks: Integers) -> Rows:
    """Return where the rows of some sequences are in packed data, by their rank."""
    return Rows((data,), ranks, batch_sizes.cumsum() - batch_sizes)


def rows_of_padded(padded: Block, batch_first: bool) -> Rows:
    """Return where the rows of all sequences are in a padded batch."""
    batch, time = padded.shape[:2] if batch_first else padded.shape[1::-1]
    if batch_first:
        return Rows((padded,), np.arange(batch) * time, np.arange(time))
    return Rows((padded,), np.arange(batch), np.arange(time) * batch)


def move(target: Rows, source: Rows, lengths: Integers, row: tuple[int, ...]) -> None:
    """Copy the rows, of some shape, of sequences of some lengths."""
    row_nbytes = math.prod(row) * source.blocks[0].itemsize if len(lengths) else 0
    if row_nbytes:
        move_rows(target, source, lengths, row_nbytes)


def counts_above(numbers: Integers) -> Integers:
    """Return how many of some numbers, none negative, are greater than 0, 1, ...

    Of lengths this makes batch sizes; of batch sizes, the lengths from the longest to the shortest.
    """
    return np.bincount(numbers)[::-1].cumsum()[-2::-1].astype(np.int64)
