"""Workers read a list of dicts at random and copy its pages, ever fewer as fewer are left.

kind: native
holder: copies the memory of its parent
"""

import torch
from torch.utils.data import DataLoader, Dataset


class Captions(Dataset):
    def __init__(self, count):
        self.items = [{"path": f"/data/{number}.jpg", "caption": f"picture {number} " * 3} for number in range(count)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        item = self.items[index]
        return len(item["caption"]) + len(item["path"])


def main():
    torch.manual_seed(0)
    loader = DataLoader(
        Captions(200_000), batch_size=1_000, num_workers=1, shuffle=True, multiprocessing_context="fork"
    )
    print(sum(int(batch.sum()) for batch in loader))


if __name__ == "__main__":
    main()
