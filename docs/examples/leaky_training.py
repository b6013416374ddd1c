"""A training loop with three leaks, for a look at the report.

``leak-report run --frames 3 -o run.json docs/examples/leaky_training.py`` and
``leak-report html run.json``: a metric that keeps the graph of every step, a history that is never
emptied, and a preview that pins all scores.
"""

import torch

import disposescope as ds


class Trainer:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 64))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.history: list[torch.Tensor] = []
        self.total = torch.zeros(())

    def step(self, batch: torch.Tensor) -> None:
        out = self.model(batch)
        loss = out.pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.history.append(out.detach().clone())
        self.total = self.total + self.model(batch).mean()  # with the graph of every step: detach() is missing

    def preview(self) -> torch.Tensor:
        scores = torch.randn(1000, 4096)
        return scores.view(-1)[:10]  # ten values pin sixteen megabytes


def main() -> tuple[Trainer, list[torch.Tensor]]:
    trainer = Trainer()
    previews = []
    for _ in range(3):
        with ds.dispose_scope("epoch") as epoch:
            for _ in range(40):
                with ds.dispose_scope("step") as step:
                    trainer.step(torch.randn(256, 512))
                    step.move_to_outer((trainer.history[-1], trainer.total))
            with ds.dispose_scope("evaluation") as evaluation:
                previews.append(evaluation.move_to_outer(trainer.preview()))
            epoch.move_to_outer((trainer.history, trainer.total, previews))
    return trainer, previews


trainer, previews = main()
print(f"{len(trainer.history)} steps")
