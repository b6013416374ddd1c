"""How long does a report over many tensors take, and how much of it is told by what retains them?

Run as a script it prints the processor seconds of a report over a million arrays in one list, of
the rows by holder in it, and of the dominators of such a graph alone; ``N`` as an argument for
another number of arrays.
"""

from __future__ import annotations

import sys
import time
from typing import Any
from unittest import mock

import numpy as np

import disposescope as ds
from disposescope.leaks.holders.dominators import dominators_of
from disposescope.leaks.verdicts import classify


def seconds_of(count: int) -> tuple[float, float, float]:
    """Return the processor seconds of a report, of its rows by holder, and of dominators.

    The report is over `count` arrays in one list, and the graph of the dominators has the same
    form.
    """
    by_holder = 0.0
    find_retainers: Any = vars(classify)["_retainers"]

    def timed(*arguments: Any, **options: Any) -> Any:
        nonlocal by_holder
        began = time.process_time()
        found = find_retainers(*arguments, **options)
        by_holder = time.process_time() - began
        return found

    with mock.patch.object(classify, "_retainers", timed), ds.LeakDetector() as detector:
        kept = [np.ones(4) for _ in range(count)]
        began = time.process_time()
        report = detector.report(of_program=True)
        whole = time.process_time() - began
        assert sum(row.count for row in report.retainers) == len(kept)
    successors = [[1], range(2, count + 2), *([(place,) for place in range(count + 2, 2 * count + 2)]), *([()] * count)]
    began = time.process_time()
    dominators_of(successors).totals([1] * len(successors))
    return whole, by_holder, time.process_time() - began


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    whole, by_holder, dominators = seconds_of(number)
    print(f"{number:,} arrays: report {whole:.1f} s, of which rows by holder {by_holder:.1f} s")
    print(f"dominators alone {dominators:.1f} s")
