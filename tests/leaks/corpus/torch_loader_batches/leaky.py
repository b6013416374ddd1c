"""Batches that a worker of a DataLoader made are kept: they are born where the loop asks for them.

kind: growth
holder: module __main__.seen[0]
"""

import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(2000, 64), torch.randint(0, 2, (2000,)))
seen = []


def main():
    for _ in range(2):
        for inputs, _targets in DataLoader(data, batch_size=20, num_workers=1):  # LEAK
            seen.append(inputs)


main()
print(len(seen))
