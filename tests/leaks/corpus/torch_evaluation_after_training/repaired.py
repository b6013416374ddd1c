"""Each epoch is evaluated, the last one too; then a longer evaluation joins its outputs."""

import torch
from torch import nn


@torch.no_grad()
def outputs_of(model, batches):
    outputs = []
    for number in range(batches):
        batch = torch.full((64, 100), float(number))
        outputs.append(model(batch))
    return outputs


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    best = 0.0
    for _ in range(4):
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.ones(64, 100)).square().mean().backward()
            optimizer.step()
        outputs = outputs_of(model, 100)
        best = max(best, *(float(output.max()) for output in outputs))
    whole = []
    for number in range(200):
        with torch.no_grad():
            whole.append(model(torch.full((64, 100), float(number))))
    return best, torch.cat(whole).mean()


main()
