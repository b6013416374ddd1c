"""Parent and child refer to one another, and the collector is off.

kind: cycle
holder: cycle
"""

import gc

import numpy as np

gc.disable()


class Node:
    def __init__(self, parent=None):
        self.parent = parent
        self.children = []
        self.values = np.ones(20_000)  # LEAK
        if parent is not None:
            parent.children.append(self)


def build():
    root = Node()
    Node(root)
    Node(root)
    return root.values.sum()


build()
