"""The loop keeps the last ten results."""

from collections import deque

import numpy as np


def prepare(count):
    table = np.zeros((count, 64))
    for index in range(count):
        row = np.sqrt(np.arange(64.0))
        table[index] = row / row.max()
    return table


def main():
    table = prepare(330)
    history = deque(maxlen=10)
    for step in range(1200):
        history.append(np.full((32, 64), table[step % 330, 1]))
    print(len(history))


main()
