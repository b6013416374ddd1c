"""The registry is weak."""

from weakref import WeakValueDictionary

import numpy as np

import disposescope as ds

registry = WeakValueDictionary()


class Session:
    def __init__(self, name):
        self.name = name
        self.scratch = np.empty(4000)


def open_session(step):
    session = Session(f"session {step}")
    registry[session.name] = session
    return session


for step in range(60):
    open_session(step).scratch.fill(step)
    with ds.dispose_scope("step"):
        np.ones(100).sum()
