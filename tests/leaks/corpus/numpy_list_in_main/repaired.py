"""It keeps a number of each step."""

import numpy as np


def step(number):
    return np.ones(1000) * number


def main():
    history = []
    for number in range(300):
        history.append(float(np.tanh(step(number) * 2 - 1).sum()))
    print(len(history))


main()
