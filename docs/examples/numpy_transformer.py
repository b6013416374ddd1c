"""A transformer block's inference in NumPy, whose memory is recorded once and planned from then on.

Batches have one of a few lengths; each length is a key and has a plan of its own, and all share one
slab. Every result is compared with that of the same block without a workspace.

    python docs/examples/numpy_transformer.py [--passes N] [--limit BYTES]
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

import disposescope as ds

Array = NDArray[np.float32]
WIDTH, HEADS = 256, 4
LENGTHS = (64, 128, 192)


class Block:
    """One block: attention and a feed-forward part, each with a residual."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        shapes = {
            "qkv": (WIDTH, 3 * WIDTH),
            "out": (WIDTH, WIDTH),
            "up": (WIDTH, 4 * WIDTH),
            "down": (4 * WIDTH, WIDTH),
        }
        self.weights = {
            name: random.standard_normal(shape, np.float32) * np.float32(0.05) for name, shape in shapes.items()
        }

    def __call__(self, x: Array) -> Array:
        """The block's result for a sequence: shape (length, WIDTH), as that of `x`."""
        y = x + self.attention(normed(x))
        hidden = normed(y) @ self.weights["up"]
        hidden = hidden / (np.float32(1) + np.exp(-hidden))
        return y + hidden @ self.weights["down"]

    def attention(self, x: Array) -> Array:
        length = len(x)
        q, k, v = (x @ self.weights["qkv"]).reshape(length, 3, HEADS, WIDTH // HEADS).transpose(1, 2, 0, 3)
        scores = q @ k.transpose(0, 2, 1) / np.float32((WIDTH // HEADS) ** 0.5)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return (weights @ v).transpose(1, 0, 2).reshape(length, WIDTH) @ self.weights["out"]


def normed(x: Array) -> Array:
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + np.float32(1e-5))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=60)
    parser.add_argument("--limit", default="256MiB")
    options = parser.parse_args()
    block, random = Block(seed=0), np.random.default_rng(1)
    workspace = ds.Workspace("inference", limit=options.limit)
    largest = workspace.persistent("largest", WIDTH, "f4")
    for number in range(options.passes):
        x = random.standard_normal((LENGTHS[number % len(LENGTHS)], WIDTH), np.float32)
        with workspace.run(key=len(x)) as scope:
            y = scope.move_to_outer(block(x))
        np.testing.assert_array_equal(y, block(x))
        np.maximum(largest, y.max(axis=0), out=largest)
    print(workspace.statistics())
    print(workspace.peak(key=max(LENGTHS)))


if __name__ == "__main__":
    main()
