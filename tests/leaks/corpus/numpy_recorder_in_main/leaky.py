"""A recorder that main() has keeps every row, and is freed when main() returns.

kind: growth, escaped
holder: main(): local 'recorder'
"""

import numpy as np

import disposescope as ds


class Recorder:
    def __init__(self):
        self.rows = []

    def record(self, row):
        self.rows.append(row)


def main():
    recorder = Recorder()
    for step in range(80):
        with ds.dispose_scope("step"):
            float(np.ones(100).sum())
        row = np.zeros(2000)  # LEAK
        recorder.record(row)
    print(len(recorder.rows))


main()
