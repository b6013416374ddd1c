"""It keeps the mean."""

import threading

import numpy as np

ready = threading.Event()
stop = threading.Event()


def measure():
    mean = 0.0
    for step in range(60):
        sample = np.zeros(2000)
        sample += step
        mean += float(sample.mean())
    ready.set()
    stop.wait()
    print(mean)


threading.Thread(target=measure, daemon=True).start()
ready.wait()
