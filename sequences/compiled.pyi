"""Rows of sequences, moved in contiguous CPU memory.

A block is an object with the buffer protocol, or a tensor with PyTorch's methods, whose memory is contiguous. All
functions check what they are given before they write, raise `ValueError` (or what a block raises) and then leave the
targets as they were. Targets and sources must not overlap.
"""

from typing import Any

SEQUENCES: int
"""The layout of one block for each sequence."""
PACKED: int
"""The layout of one block, a packed batch: all first rows, longest sequence first, then all second rows, and so on."""
TIME_FIRST: int
"""The layout of one block, a padded batch of shape (time, batch, *)."""
BATCH_FIRST: int
"""The layout of one block, a padded batch of shape (batch, time, *)."""
LEFT: int
"""Added to the layout of a padded batch: the padding comes before each sequence."""

def move_rows(
    targets: tuple[Any, ...],
    to: int,
    sources: tuple[Any, ...],
    layout: int,
    lengths: Any,
    order: Any,
    row_nbytes: int,
    fill: Any,
    /,
) -> None:
    """Copy the rows of some sequences from one layout to another, and fill a padded target.

    Parameters
    ----------
    targets, sources : tuple of blocks
        The memory, of one sequence each or of all.
    to, layout : int
        How `targets` and `sources` are laid out; not both packed.
    lengths : block of int64, shape (batch,)
        The length of each sequence by rank. In descending order where one side is packed.
    order : block of int64, shape (batch,), or None
        The place of the sequence of each rank in the side that is not packed, a permutation.
    row_nbytes : int
        The bytes of a row, more than 0.
    fill : block of one row, or None
        What the rest of a padded target is filled with; zeros where None.
    """

def count_above(target: Any, numbers: Any, /) -> None:
    """Write how many numbers are greater than 0, 1, ... to a target, which is as long as the first number says.

    Both are blocks of int64; the numbers are in descending order. Of lengths this makes batch sizes, and the reverse.
    """

def invert_permutation(target: Any, permutation: Any, /) -> None:
    """Write the inverse of a permutation to a target. Both are blocks of int64."""
