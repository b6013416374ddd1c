"""A loop over seeds keeps all models, and does nothing else that a report could count.

kind: model
holder: module __main__.models
"""

from torch import nn

models = []
for seed in range(30):
    model = nn.Linear(64, 64)  # LEAK
    models.append(model)
