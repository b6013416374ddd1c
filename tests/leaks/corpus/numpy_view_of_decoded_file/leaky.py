"""A header of ten numbers is a view, and keeps the whole decoded file.

kind: view
holder: module __main__.headers
"""

import numpy as np

headers = {}


def read_header(name):
    content = np.arange(500_000, dtype=np.float32)  # LEAK
    return content[:10]


for name in ("left", "right", "rear"):
    headers[name] = read_header(name)
