"""After a preparation with many temporaries, a list keeps each result until main() returns.

kind: growth
holder: main(): local 'history'
"""

import numpy as np


def prepare(count):
    table = np.zeros((count, 64))
    for index in range(count):
        row = np.sqrt(np.arange(64.0))
        table[index] = row / row.max()
    return table


def main():
    table = prepare(330)
    history = []
    for step in range(1200):
        history.append(np.full((32, 64), table[step % 330, 1]))  # LEAK
    print(len(history))


main()
