"""A search's table has each run's optimizer, which keeps the parameters of a model that is gone.

kind: model
holder: main(): local 'rows'
"""

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    rows = []
    for run in range(20):
        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1 / (run + 1))  # LEAK
        for _ in range(6):
            x = torch.randn(16, 32)
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
        rows.append({"loss": loss.item(), "optimizer": optimizer})
    print(min(row["loss"] for row in rows))


main()
