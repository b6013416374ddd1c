"""A recorder that main() has keeps every row, and is freed when main() returns.

kind: growth, escaped
holder: main(): local 'recorder'
"""

import jax.numpy as jnp

import disposescope as ds


class Recorder:
    def __init__(self):
        self.rows = []

    def record(self, row):
        self.rows.append(row)


def main():
    recorder = Recorder()
    for step in range(80):
        with ds.dispose_scope("step"):
            float(jnp.ones(10).sum())
        row = jnp.full((500,), float(step))  # LEAK
        recorder.record(row)
    print(len(recorder.rows))


main()
