"""A thread that goes on until the program ends collects what it measured in a variable.

kind: growth
holder: local 'measured'
"""

import threading

import numpy as np

ready = threading.Event()
stop = threading.Event()


def measure():
    measured = []
    for step in range(60):
        sample = np.zeros(2000)  # LEAK
        sample += step
        measured.append(sample)
    ready.set()
    stop.wait()
    print(len(measured))


threading.Thread(target=measure, daemon=True).start()
ready.wait()
