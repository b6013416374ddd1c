"""Children refer to their parent weakly."""

import gc
import weakref

import numpy as np

gc.disable()


class Node:
    def __init__(self, parent=None):
        self.parent = None if parent is None else weakref.ref(parent)
        self.children = []
        self.values = np.ones(20_000)
        if parent is not None:
            parent.children.append(self)


def build():
    root = Node()
    Node(root)
    Node(root)
    return root.values.sum()


build()
