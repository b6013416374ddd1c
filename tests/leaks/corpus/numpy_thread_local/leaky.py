"""A thread that runs until the program ends keeps the signals it made in its thread-local cache.

kind: growth
holder: cache
"""

import threading

import numpy as np

local = threading.local()
over = threading.Event()
made = threading.Event()


def work():
    local.cache = {}
    for step in range(80):
        signal = np.ones(2000)
        signal *= step
        local.cache[step] = signal.copy()  # LEAK
    made.set()
    over.wait()


thread = threading.Thread(target=work, daemon=True)
thread.start()
made.wait()
