"""The dataset keeps nothing."""

import torch
from torch.utils.data import DataLoader, Dataset

import disposescope as ds


class Images(Dataset):
    def __len__(self):
        return 240

    def __getitem__(self, index):
        image = torch.full((500,), float(index))
        return image.sum()


if __name__ == "__main__":
    loader = DataLoader(Images(), batch_size=4, num_workers=1)
    total = 0.0
    for batch in ds.scoped_batches(loader):
        total += float(batch.sum())
    del batch
