"""A logging handler that buffers records keeps their arguments.

kind: growth
holder: buffer
"""

import logging
import logging.handlers

import numpy as np

import disposescope as ds

buffered = logging.handlers.MemoryHandler(capacity=1_000_000)
log = logging.getLogger("pipeline")
log.addHandler(buffered)
log.propagate = False
log.setLevel(logging.INFO)

for step in range(60):
    batch = np.full(3000, step)  # LEAK
    log.info("batch %s", batch)
    with ds.dispose_scope("step"):
        np.ones(100).sum()
