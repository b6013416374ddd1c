"""Classes are made one after another, and a registry keeps each by a subclass of it.

kind: growth
holder: REGISTRY
"""

import numpy as np

REGISTRY = {}


def make(number):
    class Projection:
        weights = np.ones((96, 96))  # LEAK

    class Named(Projection):
        pass

    REGISTRY[number] = Named


for number in range(120):
    make(number)
print(len(REGISTRY), REGISTRY[0].weights.shape)
