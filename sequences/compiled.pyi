"""Copying the rows of sequences in contiguous CPU memory.

A block is an object with the buffer protocol, or a tensor with PyTorch's methods, whose memory is
contiguous.
"""

from typing import Any

def move_rows(
    target: tuple[tuple[Any, ...], Any, Any],
    source: tuple[tuple[Any, ...], Any, Any],
    lengths: Any,
    row_nbytes: int,
    /,
) -> None:
    """Copy the rows of sequences from one place to another.

    Everything is checked before anything is written: if this raises, the target is unchanged.
    Target and source must not overlap, and `starts`, `steps` and `lengths` must not change
    meanwhile.

    Parameters
    ----------
    target, source : tuple of (blocks, starts, steps)
        The places of the rows: see `rows.Rows`. `blocks` is a tuple of one block for each sequence,
        or of one for all; `starts`, shape (batch,), and `steps`, shape (time,), are blocks of
        int64, and `steps` do not descend.
    lengths : block of int64, shape (batch,)
        The length of each sequence, at most `time`.
    row_nbytes : int
        The bytes of a row, more than 0.
    """
