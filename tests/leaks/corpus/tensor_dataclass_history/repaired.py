"""The record keeps what describes its input."""

from dataclasses import dataclass, field

import disposescope as ds


@dataclass
class Step:
    number: int
    mean: float


@dataclass
class Run:
    steps: list[Step] = field(default_factory=list)


run = Run()
for number in range(60):
    batch = ds.full((500,), number)
    run.steps.append(Step(number, float(batch.mean())))
    with ds.dispose_scope("step"):
        float((batch * 2).sum())
