"""It keeps a number of each batch."""

import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(2000, 64), torch.randint(0, 2, (2000,)))
seen = []


def main():
    for _ in range(2):
        for inputs, _targets in DataLoader(data, batch_size=20, num_workers=1):
            seen.append(inputs.mean().item())


main()
print(len(seen))
