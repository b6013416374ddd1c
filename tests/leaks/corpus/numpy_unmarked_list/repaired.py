"""A table is filled once, in a burst, and is used afterwards."""

import numpy as np

table = []

for row in range(200):
    table.append(np.full(1000, float(row)))

total = 0.0
for step in range(400):
    total += float((table[step % 200] * 2).sum())
print(total)
