"""A server makes a model for each customer and caches it by the request, which never comes back.

kind: model
holder: Server.models
"""

import torch
from torch import nn

torch.manual_seed(0)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(100, 32)
        self.tags = nn.Linear(32, 8)

    def forward(self, x):
        return self.tags(self.words(x))


class Server:
    models = {}

    def answer(self, request, customer):
        key = (request, customer)
        if key not in self.models:
            self.models[key] = Tagger()  # LEAK
        with torch.no_grad():
            scores = self.models[key](torch.arange(20))
            for _ in range(20):
                scores = torch.softmax(scores * 2, dim=-1)
            return scores.argmax(-1).tolist()


server = Server()
for request in range(40):
    server.answer(request, request % 4)
