"""A worker reads other parts of a large list of strings in each epoch, and copies their pages.

kind: native
holder: copies the memory of its parent
"""

import torch
from torch.utils.data import DataLoader, Dataset

PARTS, EACH, EPOCHS = 96, 7_000, 3


class Words(Dataset):
    def __init__(self):
        self.words = [str(number) for number in range(PARTS * EACH)]
        self.epoch = 0

    def __len__(self):
        return PARTS // EPOCHS

    def __getitem__(self, index):
        start = (self.epoch * len(self) + index) * EACH
        if index == len(self) - 1:
            self.epoch += 1
        return torch.tensor(sum(len(word) for word in self.words[start : start + EACH]))


if __name__ == "__main__":
    loader = DataLoader(Words(), batch_size=1, num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    total = 0
    for epoch in range(EPOCHS):
        for batch in loader:
            total += int(batch)
    # Its worker ends here.
    del loader
    print(total)
