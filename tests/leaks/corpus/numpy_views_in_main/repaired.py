"""The headers are copies."""

import numpy as np


def main():
    headers = {}
    energy = 0.0
    for number in range(120):
        raw = np.arange(32_768, dtype=np.float32)
        chunk = raw * np.float32(0.5) + number
        energy += float(np.square(chunk).mean())
        headers[number] = chunk[:8].copy()
    return np.stack(list(headers.values())).shape, energy


main()
