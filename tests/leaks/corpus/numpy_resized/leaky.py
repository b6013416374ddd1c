"""A buffer is resized whenever it is full, so that it has all that was ever recorded.

kind: growth
holder: main(): local 'recorder'.data
"""

import numpy as np


class Recorder:
    def __init__(self):
        self.data = np.zeros(1024)  # LEAK
        self.length = 0

    def record(self, block):
        if self.length + len(block) > len(self.data):
            self.data.resize(len(self.data) + 65_536, refcheck=False)
        self.data[self.length : self.length + len(block)] = block
        self.length += len(block)


def main():
    recorder = Recorder()
    for step in range(1500):
        recorder.record(np.full(1000, step, float))
    print(recorder.length)


main()
