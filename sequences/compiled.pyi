"""Rows of sequences, moved in contiguous CPU memory.

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
    """Copy the rows of some sequences from one place to another.

    All is checked before anything is written: where it raises `ValueError`, or what a block raises,
    the target is as it was. Target and source must not overlap, and what says where rows are must
    not change meanwhile.

    Parameters
    ----------
    target, source : tuple of (blocks, starts, steps)
        Where the rows are: row ``starts[i] + steps[t]`` of its block is step t of sequence i.
        `blocks` are a tuple of one for each sequence, or of one for all; `starts`, shape (batch,),
        and `steps`, shape (time,), are blocks of int64, and steps do not descend.
    lengths : block of int64, shape (batch,)
        The length of each sequence, at most `time`.
    row_nbytes : int
        The bytes of a row, more than 0.
    """
