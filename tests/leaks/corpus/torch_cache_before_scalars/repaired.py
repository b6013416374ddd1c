"""There are few inputs, and what comes later makes numbers of them, which nobody keeps."""

import torch

torch.manual_seed(0)
experts = [torch.nn.Linear(64, 64).eval() for _ in range(4)]
cache = {}


@torch.no_grad()
def features(number):
    if number not in cache:
        rows = torch.rand(32, 64)
        cache[number] = [expert(rows) for expert in experts]
    return cache[number]


total = 0.0
for number in range(400):
    total += sum(each.mean().item() for each in features(number % 30))
