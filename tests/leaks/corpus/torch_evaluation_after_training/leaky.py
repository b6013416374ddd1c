"""An evaluation after the training keeps all outputs with their graphs until main() returns.

kind: graph, growth
holder: main(): local 'outputs'
"""

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(40):
        optimizer.zero_grad()
        model(torch.ones(64, 100)).square().mean().backward()
        optimizer.step()
    model.eval()
    outputs = []
    for number in range(100):
        batch = torch.full((64, 100), float(number))
        outputs.append(model(batch))  # LEAK
    return len(outputs)


main()
