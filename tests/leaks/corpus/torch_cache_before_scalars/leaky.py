"""What a model makes of each input is cached, and nobody asks for it a second time.

kind: growth
holder: __main__.cache[
"""

import torch

torch.manual_seed(0)
experts = [torch.nn.Linear(64, 64).eval() for _ in range(4)]
cache = {}


@torch.no_grad()
def features(number):
    if number not in cache:
        rows = torch.rand(32, 64)
        cache[number] = [expert(rows) for expert in experts]  # LEAK
    return cache[number]


total = 0.0
for number in range(200):
    total += sum(each.mean().item() for each in features(number))
