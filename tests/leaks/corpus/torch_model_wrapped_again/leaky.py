"""Each calibration wraps the model that was calibrated before, instead of the first one.

kind: model
holder: service.model
"""

import torch
from torch import nn


class Calibrated(nn.Module):
    def __init__(self, model, table):
        super().__init__()
        self.model = model
        self.register_buffer("table", table)

    def forward(self, x):
        return self.model(x) + self.table[: len(x)]


class Service:
    def __init__(self):
        self.model = self.base = nn.Linear(64, 64).eval()

    def calibrate(self, number):
        self.model = Calibrated(self.model, torch.full((1000, 64), float(number)))  # LEAK

    @torch.inference_mode()
    def predict(self, x):
        return self.model(x).argmax(-1)


torch.manual_seed(0)
service = Service()
counts = torch.zeros(64)
for number in range(80):
    service.calibrate(number)
    for _ in range(4):
        counts += torch.bincount(service.predict(torch.randn(32, 64)), minlength=64)
print(int(counts.sum()))
