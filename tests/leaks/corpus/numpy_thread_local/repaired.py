"""The cache has the last signal alone."""

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
        local.cache["last"] = signal.copy()
    made.set()
    over.wait()


thread = threading.Thread(target=work, daemon=True)
thread.start()
made.wait()
