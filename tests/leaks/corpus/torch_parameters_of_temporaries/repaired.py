"""The last eight prompts stay."""

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    head = nn.Linear(64, 4)
    prompts = {}
    level = 0.0
    for user in range(120):
        prompts[user % 8] = nn.Parameter(torch.randn(400, 64))
        with torch.no_grad():
            level = 0.9 * level + 0.1 * head(prompts[user % 8]).mean().item()
    return len(prompts), level


main()
