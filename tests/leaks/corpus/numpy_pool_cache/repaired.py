"""The cache has room for eight."""

import functools
import multiprocessing

import numpy as np


@functools.lru_cache(maxsize=8)
def features(number):
    return np.sqrt(np.arange(5_000) + number)


def first(number):
    return float(features(number)[0])


def main():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(sum(pool.map(first, range(300), chunksize=5)))


if __name__ == "__main__":
    main()
