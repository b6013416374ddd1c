"""A new sample takes the place of another."""

import random

import numpy as np


def main():
    random.seed(1)
    samples = []
    for number in range(1000):
        sample = np.full(1000, number)
        if len(samples) < 100:
            samples.append(sample)
        elif random.random() < 100 / (number + 1):
            samples[random.randrange(100)] = sample
    print(len(samples))


main()
