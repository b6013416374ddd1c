"""The buffer begins anew where it is full, once it is large enough."""

import numpy as np


class Recorder:
    def __init__(self):
        self.data = np.zeros(1024)
        self.length = 0

    def record(self, block):
        if self.length + len(block) > len(self.data):
            if len(self.data) > 200_000:
                self.length = 0
            else:
                self.data.resize(len(self.data) + 65_536, refcheck=False)
        self.data[self.length : self.length + len(block)] = block
        self.length += len(block)


def main():
    recorder = Recorder()
    for step in range(1500):
        recorder.record(np.full(1000, step, float))
    print(recorder.length)


main()
