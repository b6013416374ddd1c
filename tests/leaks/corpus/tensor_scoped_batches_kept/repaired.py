"""What is kept is moved out, and there is a bound to it."""

import heapq

import disposescope as ds

hardest = []


def loader():
    for step in range(60):
        yield ds.full((200,), step)


for step, batch in enumerate(ds.scoped_batches(loader())):
    if len(hardest) < 3:
        heapq.heappush(hardest, (float(batch.mean()), step, ds.move_to_outer(batch)))
    elif float(batch.mean()) < hardest[0][0]:
        heapq.heapreplace(hardest, (float(batch.mean()), step, ds.move_to_outer(batch)))
del batch
