"""A session is let go when it is done, and its result with it."""

import weakref

import numpy as np

RESULTS = weakref.WeakKeyDictionary()


class Session:
    pass


def main():
    done = 0
    for _ in range(80):
        session = Session()
        RESULTS[session] = np.zeros(20_000)
        done += len(RESULTS)
    print(done)


main()
