"""A dataset in a DataLoader worker keeps every item that it has made.

kind: worker, growth
holder: cache
"""

import torch
from torch.utils.data import DataLoader, Dataset

import disposescope as ds


class Images(Dataset):
    def __init__(self):
        self.cache = []

    def __len__(self):
        return 240

    def __getitem__(self, index):
        image = torch.full((500,), float(index))  # LEAK
        self.cache.append(image)
        return image.sum()


if __name__ == "__main__":
    loader = DataLoader(Images(), batch_size=4, num_workers=1)
    total = 0.0
    for batch in ds.scoped_batches(loader):
        total += float(batch.sum())
    del batch
