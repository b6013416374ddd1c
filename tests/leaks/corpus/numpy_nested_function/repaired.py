"""It fills a table once, and goes on to use it."""

from collections import defaultdict

import numpy as np


def main():
    visited = defaultdict(list)

    def visit(number):
        visited[number % 3].append(np.full(2000, number))

    for number in range(60):
        visit(number)
    total = 0.0
    for number in range(400):
        rows = visited[number % 3]
        total += float((rows[number % len(rows)] * np.ones(2000)).sum())
    print(total)


main()
