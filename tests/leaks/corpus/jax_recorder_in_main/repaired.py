"""It keeps the last eight."""

from collections import deque

import jax.numpy as jnp

import disposescope as ds


class Recorder:
    def __init__(self):
        self.rows = deque(maxlen=8)

    def record(self, row):
        self.rows.append(row)


def main():
    recorder = Recorder()
    for step in range(80):
        with ds.dispose_scope("step"):
            float(jnp.ones(10).sum())
        row = jnp.full((500,), float(step))
        recorder.record(row)
    print(len(recorder.rows))


main()
