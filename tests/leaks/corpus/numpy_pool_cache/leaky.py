"""Each worker of a pool keeps what it computed, and the pool ends it before it is told to stop.

kind: worker
holder: module __main__.cache[
"""

import multiprocessing

import numpy as np

cache = {}


def features(number):
    if number not in cache:
        cache[number] = np.sqrt(np.arange(5_000) + number)  # LEAK
    return float(cache[number][0])


def main():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(sum(pool.map(features, range(300), chunksize=5)))


if __name__ == "__main__":
    main()
