"""The plot gets a short copy of its own."""

import numpy as np

import disposescope as ds

plots = []

for step in range(4):
    with ds.dispose_scope("step") as scope:
        curve = ds.arange(3000) * step
        plots.append(scope.move_to_outer(np.array(curve[::100])))
