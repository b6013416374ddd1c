"""A program without marks keeps the output for each batch, on an object that main() has.

kind: growth
holder: main(): local 'evaluation'
"""

import torch


class Evaluation:
    def __init__(self):
        self.outputs = {}

    def add(self, number, output):
        self.outputs[number] = output


def main():
    model = torch.nn.Linear(64, 64)
    evaluation = Evaluation()
    with torch.no_grad():
        for number in range(200):
            evaluation.add(number, model(torch.ones(32, 64)))  # LEAK
    print(len(evaluation.outputs))


main()
