"""Plans of memory, compiled."""

from numpy import int64
from numpy.typing import NDArray

def plan(
    lower: NDArray[int64], upper: NDArray[int64], sizes: NDArray[int64], offsets: NDArray[int64], seconds: float, /
) -> tuple[int, int]:
    """Plan buffers, and check the plan.

    Other threads run meanwhile, and so do Python's handlers of signals.

    Parameters
    ----------
    lower, upper, sizes : array of int64
        When each buffer begins to live, when it does no longer, and its bytes, 1 or more.
        Contiguous.
    offsets : array of int64
        Gets the plan.
    seconds : float
        How long better plans are looked for.

    Returns
    -------
    tuple of int
        The height of the plan, and a height that none can be below.
    """
