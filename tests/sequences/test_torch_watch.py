"""Who looks on sees PyTorch's own functions called, and what is made on the way is born nowhere."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import disposescope as ds
from disposescope.sequences import torch_rows
from disposescope.sequences.torch_rows import aside


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=["in one call", "one by one"], autouse=True)
def asked(request, monkeypatch):
    if request.param == "one by one":
        monkeypatch.setattr(torch_rows, "_alone", torch_rows._not_known)


def made(given):
    return given + 1


def test_where_nobody_looks_on_it_is_called():
    assert aside(made, 1) == 2
    with torch.inference_mode(), torch.no_grad():
        assert aside(made, 1) == 2


@pytest.mark.parametrize("mode", [Functions, Operators, torch.autograd.forward_ad.dual_level])
def test_under_a_mode_it_is_not(mode):
    with mode():
        assert aside(made, 1) is None
    assert aside(made, 1) == 2


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")
def test_in_a_transform_and_in_a_trace_it_is_not():
    found = []

    def function(x):
        found.append(aside(made, 1))
        return x * 2

    torch.vmap(function)(torch.ones(2))
    torch.func.grad(lambda x: function(x).sum())(torch.ones(2))
    torch.jit.trace(function, torch.ones(2), check_trace=False)
    assert found == [None] * 3


def test_under_a_leak_detector_it_is_not():
    with ds.LeakDetector():
        assert aside(made, 1) is None


def test_what_it_raises_is_raised_and_the_next_birth_is_one():
    def fails(given):
        raise ValueError(given)

    with ds.dispose_scope() as scope:
        with pytest.raises(ValueError, match="here"):
            aside(fails, "here")
        tensor = torch.ones(2)
        assert scope.live == (tensor,)


def test_what_is_made_on_the_way_is_born_nowhere():
    with ds.dispose_scope() as scope:
        tensor = aside(lambda _: torch.ones(2) + 1, None)
        assert scope.live == ()
    assert tensor.tolist() == [2, 2]


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("lengths", [(3,), (3, 2), (3, 3, 3), tuple(range(20, 0, -1))])
def test_what_is_padded_is_born_once(lengths, graph):
    sequences = [torch.randn(length, 2, requires_grad=graph) for length in lengths]
    with ds.dispose_scope() as scope:
        padded = ds.pad_sequence(sequences)
        assert scope.live == (padded,)
        assert ds.statistics().created_in_scope == 1
        assert all(torch.equal(padded[: len(each), at], each) for at, each in enumerate(sequences))
    assert ds.is_disposed(padded)
