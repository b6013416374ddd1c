"""Disposed tensors are dead below Python too, wherever disposed, and nothing else notices."""

from __future__ import annotations

import weakref

import pytest

torch = pytest.importorskip("torch")

import disposescope as ds


def dispose(count):
    with ds.dispose_scope():
        return [torch.ones(2) for _ in range(count)]


def refuses(tensor):
    with torch._C.DisableTorchFunctionSubclass(), pytest.raises(ds.DisposedError):
        torch._C._VariableFunctions.relu(tensor)
    with pytest.raises(ds.DisposedError):
        tensor + 1
    return True


@pytest.mark.parametrize("count", [1, 100])
def test_each_of_many_is_dead_below_python_too(count):
    dead = dispose(count)

    assert all(refuses(tensor) for tensor in dead)


def test_what_finalizers_make_while_tensors_are_disposed_has_a_graph():
    made = []
    weight = torch.ones(2, requires_grad=True)

    class Thing:
        pass

    with ds.dispose_scope():
        tensors = [torch.ones(2) for _ in range(100)]
        for tensor in tensors[::7]:
            tensor.thing = thing = Thing()
            weakref.finalize(thing, lambda: made.append((weight * 2).grad_fn))
        del thing, tensor

    assert len(made) == 15
    assert None not in made


def test_what_was_disposed_inside_of_a_transform_is_dead_after_it():
    kept = []

    def function(x):
        with ds.dispose_scope() as scope:
            kept.extend(scope.attach(x * i) for i in range(20))
        return x * 2

    assert torch.vmap(function)(torch.ones(3)).tolist() == [2, 2, 2]
    assert torch.func.grad(function)(torch.ones(())).item() == 2
    assert len(kept) == 40
    for tensor in kept:
        with pytest.raises(ds.DisposedError):
            tensor + 1
    assert all(refuses(tensor) for tensor in dispose(40))


def test_disposing_under_inference_mode_and_after_it():
    with torch.inference_mode():
        first = dispose(20)
    second = dispose(20)
    with torch.inference_mode():
        third = dispose(20)

    assert all(refuses(tensor) for tensor in first + second + third)
