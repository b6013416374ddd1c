"""`plan`: the offsets of buffers with known lives in one slab."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from reprlib import repr as short_repr
from typing import Any, Final, cast, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import compiled

__all__ = ["Plan", "plan", "seconds_of"]

_COLUMNS: Final = ("lower", "upper", "size")
"""The names of the columns of the buffers, for messages."""
_BYTES_LIMIT: Final = 2**62
"""All sizes together must be below this: compiled code adds them as 64-bit integers."""
_LONGEST_S: Final = 10**9
"""A longer time limit, such as infinity, is taken for this many seconds."""


@final
@dataclass(frozen=True, eq=False)
class Plan:
    """The offsets of buffers in a slab.

    Attributes
    ----------
    offsets : array of int64, shape (n,)
        Where each buffer begins, in bytes from the beginning of the slab. Read-only.
    height : int
        The bytes of the slab: the largest offset plus size.
    lower_bound : int
        No plan is lower than this: the most bytes that live at once, or more if a search has shown
        it.
    """

    offsets: NDArray[np.int64]
    height: int
    lower_bound: int

    @property
    def is_optimal(self) -> bool:
        """Return whether no plan can be lower, as far as is known."""
        return self.height == self.lower_bound

    @property
    def ratio(self) -> float:
        """Return the height divided by the lower bound; 1.0 without any bytes."""
        return self.height / self.lower_bound if self.lower_bound else 1.0


def plan(buffers: ArrayLike | Iterable[Sequence[int]], /, *, time_limit: float = 0.05) -> Plan:
    """Plan the offsets of buffers in one slab, so that none overlap that live at the same time.

    The greedy plan by size is always made. Other plans are made while the time limit allows. The
    lowest plan is checked and returned. For up to 1,024 buffers there is also a search, which often
    finds a plan as low as the lower bound within a second. Other threads run meanwhile.

    Parameters
    ----------
    buffers : array_like of int, shape (n, 3)
        A row for each buffer: when its life begins, when it ends (excluded), and its bytes. Times
        are any integers, such as numbers of births. An iterator of rows is read to its end.
    time_limit : float, default 0.05
        How many seconds to look for better plans.

    Returns
    -------
    Plan
        The offsets, in the order of the buffers.

    Raises
    ------
    TypeError
        The buffers are no rows, or not of integers, or the time limit is no number.
    ValueError
        The buffers do not have three columns, a life ends before or when it begins, a size is
        negative, or all bytes together are 2**62 or more; the row is named. The time limit is
        negative.

    Notes
    -----
    The search is that of M. D. Moffitt, "MiniMalloc: A Lightweight Memory Allocator for
    Hardware-Accelerated Machine Learning", ASPLOS 2023.

    Examples
    --------
    >>> import disposescope as ds
    >>> found = ds.plan([(0, 2, 64), (1, 3, 32), (2, 4, 64)])
    >>> found.offsets.tolist(), found.height, found.is_optimal
    ([0, 64, 0], 96, True)
    """
    rows = _rows_of(buffers)
    seconds = seconds_of(time_limit)
    offsets = np.zeros(len(rows), np.int64)
    sized = np.flatnonzero(rows[:, 2])
    lower, upper, sizes = (np.ascontiguousarray(rows[sized, column]) for column in range(3))
    found = np.zeros(len(sized), np.int64)
    height, bound = compiled.plan(lower, upper, sizes, found, seconds)
    offsets[sized] = found
    offsets.flags.writeable = False
    return Plan(offsets, height, bound)


def _rows_of(buffers: Any) -> NDArray[np.int64]:
    if hasattr(buffers, "__next__"):
        buffers = list(buffers)
    try:
        given = np.asarray(buffers)
    except ValueError as error:
        raise ValueError(
            f"plan: expected rows of lower, upper and size, found rows of different lengths ({error})"
        ) from None
    if given.ndim == 0 and not isinstance(buffers, np.ndarray):
        raise TypeError(f"plan: buffers are rows of lower, upper and size, not {short_repr(buffers)}")
    if given.shape in ((0,), (0, 3)):
        return np.zeros((0, 3), np.int64)
    if given.ndim != 2 or given.shape[1] != 3:
        raise ValueError(f"plan: expected an array of shape (n, 3) with lower, upper and size, found {given.shape}")
    if given.dtype.kind in "fO" and not isinstance(buffers, np.ndarray):
        # NumPy makes floats or objects of integers that are too large.
        exact = [value for row in buffers for value in row]
        if all(isinstance(value, int) for value in exact):
            raise ValueError(f"plan: {max(exact, key=abs)} does not fit into 64 bits")
    if given.dtype.kind not in "iu":
        raise TypeError(f"plan: lower, upper and size are integers, not {given.dtype}")
    if given.dtype.kind == "u" and given.max() > np.iinfo(np.int64).max:
        raise ValueError(f"plan: {given.max()} does not fit into 64 bits with a sign")
    rows: NDArray[np.int64] = given.astype(np.int64)
    for wrong, text in (
        (rows[:, 1] <= rows[:, 0], "its life ends before or when it begins"),
        (rows[:, 2] < 0, "its size is negative"),
    ):
        if wrong.any():
            row = int(wrong.argmax())
            values = ", ".join(f"{name} {value}" for name, value in zip(_COLUMNS, rows[row].tolist(), strict=True))
            raise ValueError(f"plan: buffer {row} ({values}): {text}")
    nbytes = sum(rows[:, 2].tolist())
    if nbytes >= _BYTES_LIMIT:
        raise ValueError(f"plan: the buffers have {nbytes} bytes together, more than can be planned")
    return rows


def seconds_of(time_limit: object) -> float:
    """Return a time limit in seconds, as a float, or raise if it is no number or negative."""
    if isinstance(time_limit, (bool, np.bool_)) or not isinstance(time_limit, Real):
        raise TypeError(f"plan: time_limit is a number of seconds, not {time_limit!r}")
    seconds = cast("float", time_limit)
    if not seconds >= 0:
        raise ValueError(f"plan: time_limit is a number of seconds, 0 or more, not {time_limit!r}")
    return float(min(seconds, _LONGEST_S))
