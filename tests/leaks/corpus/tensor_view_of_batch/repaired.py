"""compact=True copies a small view of a big storage, so that the big one can go."""

import disposescope as ds

examples = []

for step in range(3):
    with ds.dispose_scope("step") as scope:
        batch = ds.zeros((1000, 200)) + step
        examples.append(scope.move_to_outer(batch[0], compact=True))
