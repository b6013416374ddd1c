"""A record of the run keeps its inputs by a field of a dataclass.

kind: growth
holder: .batch
"""

from dataclasses import dataclass, field

import disposescope as ds


@dataclass
class Step:
    number: int
    batch: ds.Tensor


@dataclass
class Run:
    steps: list[Step] = field(default_factory=list)


run = Run()
for number in range(60):
    batch = ds.full((500,), number)  # LEAK
    run.steps.append(Step(number, batch))
    with ds.dispose_scope("step"):
        float((batch * 2).sum())
