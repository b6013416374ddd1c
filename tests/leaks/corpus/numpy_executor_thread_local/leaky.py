"""Threads of an executor keep every item in their thread local, and end before main() returns.

kind: growth
holder: module __main__.local (of a thread).seen
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

local = threading.local()


def work(number):
    if not hasattr(local, "seen"):
        local.seen = []
    local.seen.append(np.full(5000, number))  # LEAK
    return number


def main():
    with ThreadPoolExecutor(2) as executor:
        for number in range(200):
            executor.submit(work, number).result()


main()
