"""The lengths are rounded up, so that the memo fills and stays as it is."""

import numpy as np

import disposescope as ds

windows = {}


def window(length):
    length = -(-length // 64) * 64
    if length not in windows:
        windows[length] = np.hanning(length)
    return windows[length]


for step in range(60):
    signal_window = window(2000 + step % 4)
    with ds.dispose_scope("step"):
        (signal_window * 2).sum()
