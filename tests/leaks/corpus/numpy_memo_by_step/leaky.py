"""A memo whose key is never the same again.

kind: growth, escaped
holder: module __main__.windows
"""

import numpy as np

import disposescope as ds

windows = {}


def window(length):
    if length not in windows:
        windows[length] = np.hanning(length)  # LEAK
    return windows[length]


for step in range(60):
    signal_window = window(2000 + step)
    with ds.dispose_scope("step"):
        (signal_window * 2).sum()
