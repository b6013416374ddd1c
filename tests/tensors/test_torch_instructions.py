"""What the instruction that made a tensor is called in reports."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from disposescope.leaks import LeakDetector
from tests.leaks.births import op_of

X, W = torch.ones(3, 3), torch.full((3, 3), 2.0)


class Layer(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2


LAYER = Layer()
EXPRESSIONS = {
    "torch.relu(X)": "relu",
    "X.relu()": "relu",
    "torch.nn.functional.gelu(input=X)": "gelu",
    "torch.cat([X, *[W]], **{'dim': 0})": "cat",
    "X @ W": "matmul",
    "2 * X": "mul",
    "X / 2": "div",
    "X // 2": "floor_divide",
    "X ** 2": "pow",
    "X - W": "sub",
    "-X": "neg",
    "X < W": "lt",
    "X[[0, 1]]": "__getitem__",
    "X.real.clone()": "clone",
    "LAYER(X)": "mul",
    "(lambda f: f(X))(torch.exp)": "f",
}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_call_is_named_by_the_expression_that_makes_it(expression: str) -> None:
    code = compile(expression, __file__, "eval")
    with LeakDetector() as detector:
        kept = eval(code, globals())
        named = [op_of(seen) for seen in detector.memory() if seen.kind == "torch.Tensor"]
    assert named == [EXPRESSIONS[expression]]
    assert kept.shape[-1] == 3


def test_calls_of_one_line_are_told_apart_and_repeated_ones_are_one_site() -> None:
    with LeakDetector() as detector:
        kept = [torch.relu(X) + torch.exp(W) for _ in range(3)]
        named = [op_of(seen) for seen in detector.memory() if seen.kind == "torch.Tensor"]
        records = {(record.op, record.site) for record in detector.take_snapshot()}
    assert named == ["add"] * 3
    assert len(records) == 1
    assert len(kept) == 3
