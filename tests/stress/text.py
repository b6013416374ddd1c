"""NumPy parses text, for which it calls the arena without the GIL."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np

import disposescope as ds

from .run import Run, Work, same

NUMBERS = np.arange(20_000.0)
COUNTS = 10, 4096, 4097, 9_000, 20_000
TEXTS = {count: " ".join(map(repr, NUMBERS[:count].tolist())) for count in COUNTS}


FILES: dict[int, str] = {}
"""The same texts as files."""


def write_files(folder: str) -> None:
    for count, text in TEXTS.items():
        FILES[count] = os.path.join(folder, str(count))
        with open(FILES[count], "w") as file:
            file.write(text)


def text_work(run: Run, *, strict: bool = True) -> Work:
    """Return the work of threads, every other of which parses text in scopes of all sorts.

    The others make and drop small and large arrays.
    """

    def parse(number: int, rng: random.Random) -> int:
        for _ in range(3):
            options: dict[str, Any] = rng.choice(({}, {"strict": strict}, {"budget": "8MiB"}, {"arena": False}))
            with ds.dispose_scope(f"of thread {number}", **options) as scope:
                for _ in range(4):
                    count = rng.choice(COUNTS)
                    if rng.random() < 0.7:
                        array = np.fromstring(TEXTS[count], sep=" ")
                    else:
                        array = np.fromfile(FILES[count], sep=" ")
                    if not same(array, NUMBERS[:count]):
                        run.wrong(f"{count} numbers parsed in {scope!r} are others: {array!r}")
                    scope.move_to_outer(array)
                    del array
        return 12

    def churn(number: int, rng: random.Random) -> int:
        for _ in range(3):
            with ds.dispose_scope(f"of thread {number}"):
                for _ in range(4):
                    size = rng.choice((1, 10, 600, 4096, 5000, 9000, 70_000))
                    arrays = [np.full(size, float(which)) for which in range(20)]
                    for which in range(20):
                        if rng.random() < 0.3:
                            arrays[which] = arrays[which] * 2 / 2
                    for which, array in enumerate(arrays):
                        if not (array == which).all():
                            run.wrong(f"an array of {size} times {which} is another: {array!r}")
        return 240

    return lambda number, rng: (churn if number % 2 else parse)(number, rng)


def text(run: Run) -> None:
    """``np.fromstring`` and ``np.fromfile`` while other threads use the arena."""
    run.in_threads(text_work(run))
