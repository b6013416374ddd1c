"""Samples of a stream are to be kept at random, and one is put in without another taken out.

kind: growth
holder: main(): local 'samples'
"""

import random

import numpy as np


def main():
    random.seed(1)
    samples = []
    for number in range(1000):
        sample = np.full(1000, number)  # LEAK
        if random.random() < 0.5:
            samples.append(sample)
    print(len(samples))


main()
