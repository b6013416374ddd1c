"""It keeps the last output."""

import torch


class Evaluation:
    def __init__(self):
        self.outputs = {}

    def add(self, output):
        self.outputs["last"] = output


def main():
    model = torch.nn.Linear(64, 64)
    evaluation = Evaluation()
    with torch.no_grad():
        for _ in range(200):
            evaluation.add(model(torch.ones(32, 64)))
    print(len(evaluation.outputs))


main()
