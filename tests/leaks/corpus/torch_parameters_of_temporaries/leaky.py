"""A prompt for each user is a parameter, and none is ever dropped.

kind: growth
holder: main(): local 'prompts'
"""

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    head = nn.Linear(64, 4)
    prompts = {}
    level = 0.0
    for user in range(120):
        prompts[user] = nn.Parameter(torch.randn(400, 64))  # LEAK
        with torch.no_grad():
            level = 0.9 * level + 0.1 * head(prompts[user]).mean().item()
    return len(prompts), level


main()
