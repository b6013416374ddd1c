"""The session keeps the names."""

from functools import cached_property

import numpy as np


class Recording:
    def __init__(self, name):
        self.name = name

    @cached_property
    def spectrum(self):
        signal = np.arange(2000.0)
        return np.sin(signal).copy()


recordings = []
for step in range(80):
    recording = Recording(f"day {step}")
    recording.spectrum.max()
    recordings.append(recording.name)
