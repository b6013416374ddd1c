"""A budget as people write it: bytes, or a number with a unit."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["parse_budget"]

_WRITTEN: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_budget(budget: object) -> int:
    """The bytes of a budget.

    Parameters
    ----------
    budget : int or str
        Bytes, or a number with a unit: ``"512MiB"`` (1024 to a KiB), ``"1.5 GB"`` (1000 to a kB), ``"64k"``.

    Raises
    ------
    TypeError, ValueError
        It is none of these, or not positive.

    Examples
    --------
    >>> parse_budget("512MiB"), parse_budget("1.5 kB"), parse_budget(10)
    (536870912, 1500, 10)
    """
    if isinstance(budget, bool) or not isinstance(budget, (int, str)):
        raise TypeError(f'budget must be a number of bytes or a string such as "512MiB", not {budget!r}')
    nbytes: int
    if isinstance(budget, str):
        found = _WRITTEN.fullmatch(budget)
        if found is None:
            raise ValueError(f'budget {budget!r} is not a number with a unit, such as "512MiB" or "2 GB"')
        number, power, binary = found.groups()
        base = 1024 if binary else 1000
        whole, _, fraction = number.partition(".")
        scale = int(base ** _POWERS[power.lower()])
        nbytes = int(whole) * scale + int(fraction or 0) * scale // 10 ** len(fraction)
    else:
        nbytes = budget
    if nbytes <= 0:
        raise ValueError(f"budget must be positive, not {budget!r}")
    return min(nbytes, (1 << 62))
