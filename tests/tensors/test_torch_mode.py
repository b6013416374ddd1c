"""The mode that sees births in Python, where they cannot be seen at the allocation."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import disposescope as ds
from disposescope.tensors.torch.births import MODE, BirthMode
from disposescope.tensors.torch.extension import TORCH_COMPILED


def seen_by_the_mode(work):
    """What some work returns, with births seen by the mode alone."""
    with BirthMode():
        return TORCH_COMPILED.unborn(lambda _: work(), None)


def test_what_calls_return_is_born():
    def work():
        x = torch.ones(3)
        return x, x + 1, x.sum(), torch.nn.functional.relu(x), copy.deepcopy(x), *x.split(1)

    with ds.dispose_scope() as scope:
        made = seen_by_the_mode(work)
        assert all(tensor in scope for tensor in made)
    assert all(ds.is_disposed(tensor) for tensor in made)


def test_what_was_there_is_not():
    x = torch.ones(3)
    weight = torch.ones(3, requires_grad=True)
    weight.sum().backward()

    def work():
        results = [
            x.add_(1),
            x.contiguous(),
            torch.add(x, 1, out=x),
            weight.grad,
            x.to(x.dtype),
            torch.utils.checkpoint.checkpoint(lambda y: y, weight, use_reentrant=False),
        ]
        torch.broadcast_tensors(x, x)
        x.shape, x.dtype, x.tolist()
        return results

    with ds.dispose_scope():
        results = seen_by_the_mode(work)
        assert all(ds.owner_of(tensor) is None for tensor in results)
    assert x.tolist() == [3, 3, 3]


def test_what_is_made_inside_of_a_backward_pass_or_a_transform_is_not():
    weight = torch.ones(3, requires_grad=True)
    made = []
    weight.register_hook(lambda gradient: made.append(gradient * 2))

    def work():
        weight.sum().backward()
        torch.func.grad(lambda y: made.append(y * 2) or y.sum())(torch.ones(3))

    with ds.dispose_scope() as scope:
        seen_by_the_mode(work)
        assert len(made) == 2
        assert not [tensor for tensor in made if tensor in scope]


def test_what_a_model_is_given_is_the_models():
    module = torch.nn.BatchNorm1d(3)
    weight = torch.ones(3, requires_grad=True)

    def work():
        module.register_buffer("more", torch.zeros(3))
        weight.grad = torch.full((3,), 2.0)
        return copy.deepcopy(module)

    with ds.dispose_scope():
        copied = seen_by_the_mode(work)
    assert copied.more.sum() == module.more.sum() == 0
    assert copied(torch.ones(2, 3)).shape == (2, 3)
    assert weight.grad.sum() == 6


def test_a_budget_refuses_what_a_call_returned():
    with ds.dispose_scope(budget=4096) as scope:
        for make in (lambda: torch.ones(100_000), lambda: torch.ones(100_000).split(10)):
            with pytest.raises(MemoryError):
                seen_by_the_mode(make)
        assert len(scope) == 0
        fits = seen_by_the_mode(lambda: torch.ones(10))
        assert fits in scope


def test_outside_of_every_scope_nothing_is_born():
    made = seen_by_the_mode(lambda: torch.ones(3) + 1)
    assert ds.owner_of(made) is None
    assert type(MODE) is BirthMode
