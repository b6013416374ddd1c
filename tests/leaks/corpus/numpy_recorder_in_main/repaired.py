"""It keeps the last eight."""

from collections import deque

import numpy as np

import disposescope as ds


class Recorder:
    def __init__(self):
        self.rows = deque(maxlen=8)

    def record(self, row):
        self.rows.append(row)


def main():
    recorder = Recorder()
    for step in range(80):
        with ds.dispose_scope("step"):
            float(np.ones(100).sum())
        row = np.zeros(2000)
        recorder.record(row)
    print(len(recorder.rows))


main()
