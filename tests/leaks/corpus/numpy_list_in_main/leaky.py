"""A program without marks keeps the result of each step in a list of main(), whose return frees it.

kind: growth
holder: main(): local 'history'
"""

import numpy as np


def step(number):
    return np.ones(1000) * number


def main():
    history = []
    for number in range(300):
        history.append(np.tanh(step(number) * 2 - 1))  # LEAK
    print(len(history))


main()
