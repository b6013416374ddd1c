"""A loop makes one array a turn and keeps it; nothing else is made.

kind: growth
holder: module __main__.frames
"""

import numpy as np

frames = []

for step in range(200):
    frames.append(np.full(1000, float(step)))  # LEAK
