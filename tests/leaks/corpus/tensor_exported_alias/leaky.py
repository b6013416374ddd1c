"""The arrays behind tensors are kept, and with them the memory of tensors that are disposed.

kind: escaped, growth
holder: module __main__.plots
"""

import numpy as np

import disposescope as ds

plots = []

for step in range(60):
    with ds.dispose_scope("step"):
        curve = ds.arange(3000) * step  # LEAK
        plots.append(np.asarray(curve))
