"""The buffer has the last 512 keys."""

import torch
from torch import nn


class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(64, 128)
        self.register_buffer("queue", torch.zeros(0, 128))

    def forward(self, batch):
        keys = nn.functional.normalize(self.encoder(batch), dim=1)
        with torch.no_grad():
            self.queue = torch.cat([self.queue, keys.detach()])[-512:]
        return (keys @ self.queue.T[:, -512:]).logsumexp(1).mean()


model = Contrast()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100):
    loss = model(torch.ones(64, 64) * step)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(len(model.queue))
