"""Plans of memory, compiled."""

from numpy import int64
from numpy.typing import NDArray

def plan(
    lower: NDArray[int64], upper: NDArray[int64], sizes: NDArray[int64], offsets: NDArray[int64], seconds: float, /
) -> tuple[int, int]:
    """Make a plan and check it. Releases the GIL, and lets Python handle signals.

    Parameters
    ----------
    lower, upper, sizes : array of int64
        When the life of each buffer begins and ends, and its bytes, 1 or more. Contiguous.
    offsets : array of int64
        Gets the plan. Contiguous.
    seconds : float
        How long better plans are looked for.

    Returns
    -------
    tuple of int
        The height of the plan, and a lower bound for the height of every plan.
    """
