"""Batches of a loop are kept for later, and later they are disposed.

kind: escaped
holder: module __main__.hardest
"""

import disposescope as ds

hardest = []


def loader():
    for step in range(60):
        yield ds.full((200,), step)  # LEAK


for batch in ds.scoped_batches(loader()):
    if float(batch.mean()) >= 0:
        hardest.append(batch)
del batch
