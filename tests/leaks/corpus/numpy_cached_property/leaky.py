"""Each recording computes its spectrum once, and the session keeps the recordings for their names.

kind: growth
holder: recordings
"""

from functools import cached_property

import numpy as np


class Recording:
    def __init__(self, name):
        self.name = name

    @cached_property
    def spectrum(self):
        signal = np.arange(2000.0)
        return np.sin(signal).copy()  # LEAK


recordings = []
for step in range(80):
    recording = Recording(f"day {step}")
    recording.spectrum.max()
    recordings.append(recording)
