"""Answers requests; its memory grows with each of them.

It keeps an array of each request in a cache that nothing empties, and a record in a log.
``leak-report run docs/examples/growing_service.py`` names the line of the arrays and the cache.
"""

import numpy as np

CACHE = {}
LOG = []


def embed(text):
    return np.frombuffer(text.encode() * 1000, dtype="uint8").astype("float64")


def answer(number):
    text = f"request {number:08}"
    if text not in CACHE:
        CACHE[text] = embed(text)
    LOG.append({"number": number, "text": text, "words": text.split()})
    return float(CACHE[text].mean())


if __name__ == "__main__":
    print(f"the answers add up to {sum(answer(number) for number in range(200)):,.0f}")
