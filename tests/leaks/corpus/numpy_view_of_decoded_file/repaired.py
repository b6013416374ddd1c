"""A copy of the header lets the file go."""

import numpy as np

headers = {}


def read_header(name):
    content = np.arange(500_000, dtype=np.float32)
    return content[:10].copy()


for name in ("left", "right", "rear"):
    headers[name] = read_header(name)
