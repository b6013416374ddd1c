"""Only the weights before the last task stay."""

import copy

import torch

torch.manual_seed(0)
net = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
anchors = []
for step in range(120):
    if step % 3 == 0:
        anchors[:] = [copy.deepcopy(net.weight)]
    loss = net(torch.randn(8, 64)).square().mean() + (net.weight - anchors[-1]).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
