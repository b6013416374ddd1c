"""A nested function adds to a dict of lists of main(), in a program without marks.

kind: growth
holder: main(): local 'visited'
"""

from collections import defaultdict

import numpy as np


def main():
    visited = defaultdict(list)

    def visit(number):
        visited[number % 3].append(np.full(2000, number))  # LEAK

    for number in range(400):
        visit(number)
    print(len(visited))


main()
