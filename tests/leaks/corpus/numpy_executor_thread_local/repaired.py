"""They keep the last one."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

local = threading.local()


def work(number):
    local.seen = np.full(5000, number)
    return number


def main():
    with ThreadPoolExecutor(2) as executor:
        for number in range(200):
            executor.submit(work, number).result()


main()
