"""The table holds a number a row."""

import numpy as np

import disposescope as ds


class Table:
    def __init__(self):
        self.rows = np.empty(128, dtype=object)
        self.count = 0

    def add(self, row):
        self.rows[self.count] = float(row.mean())
        self.count += 1


table = Table()
for step in range(60):
    table.add(np.full(1500, step))
    with ds.dispose_scope("step"):
        np.ones(100).sum()
