"""The places of rows in sequences, padded batches and packed data, and copying the rows."""

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
    """The places of the rows of sequences.

    Row ``starts[i] + steps[t]`` of the block of sequence i is step t of that sequence.
    """

    blocks: tuple[Block, ...]
    """One block for each sequence, or one for all."""
    starts: Integers
    """For each sequence, the row of its first step, shape (batch,)."""
    steps: Integers
    """For each step, how many rows it comes after the first step, shape (time,)."""


def rows_of_sequences(blocks: list[Block], time: int) -> Rows:
    """Return the rows of sequences with a block each, none longer than `time`."""
    return Rows(tuple(blocks), np.zeros(len(blocks), np.int64), np.arange(time))


def rows_of_packed(data: Block, batch_sizes: Integers, ranks: Integers) -> Rows:
    """Return the rows of sequences in packed data.

    `ranks` has the place of each sequence in the order by length, longest first.
    """
    return Rows((data,), ranks, batch_sizes.cumsum() - batch_sizes)


def rows_of_padded(padded: Block, batch_first: bool) -> Rows:
    """Return the rows of all sequences in a padded batch."""
    batch, time = padded.shape[:2] if batch_first else padded.shape[1::-1]
    if batch_first:
        return Rows((padded,), np.arange(batch) * time, np.arange(time))
    return Rows((padded,), np.arange(batch), np.arange(time) * batch)


def move(target: Rows, source: Rows, lengths: Integers, row: tuple[int, ...]) -> None:
    """Copy the rows of sequences, given the length of each and the shape of a row."""
    row_nbytes = math.prod(row) * source.blocks[0].itemsize if len(lengths) else 0
    if row_nbytes:
        move_rows(target, source, lengths, row_nbytes)


def counts_above(numbers: Integers) -> Integers:
    """Return how many of the numbers, none negative, are greater than 0, greater than 1, and so on.

    Given lengths, these are batch sizes. Given batch sizes, these are lengths, the longest first.
    """
    return np.bincount(numbers)[::-1].cumsum()[-2::-1].astype(np.int64)
