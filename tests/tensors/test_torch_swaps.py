"""Swapped tensors: what PyTorch swaps outside of a scope it swaps inside, and owners stay."""

from __future__ import annotations

import weakref

import pytest

torch = pytest.importorskip("torch")

import disposescope as ds


@pytest.fixture
def swaps_on_conversion():
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(before)


def test_tensors_of_a_scope_are_swapped_and_keep_their_owner():
    with ds.dispose_scope() as outer:
        kept = torch.zeros(2)
        with ds.dispose_scope() as inner:
            passing = torch.ones(3)
            torch.utils.swap_tensors(kept, passing)
            assert kept.tolist() == [1, 1, 1]
            assert passing.tolist() == [0, 0]
            assert kept in outer
            assert passing in inner
        assert ds.is_disposed(passing)
        assert kept.tolist() == [1, 1, 1]
    assert ds.is_disposed(kept)


def test_a_parameter_that_takes_the_content_of_a_tensor_stays_the_models():
    model = torch.nn.Linear(2, 2)
    weight = model.weight
    with ds.dispose_scope():
        fresh = torch.nn.Parameter(torch.full((2, 2), 3.0))
        torch.utils.swap_tensors(weight, fresh)
        with pytest.raises(RuntimeError, match="weakref"):
            reference = weakref.ref(fresh)
            torch.utils.swap_tensors(weight, fresh)
        assert reference() is fresh
    assert weight is model.weight
    assert model(torch.ones(2)).shape == (2,)
    assert weight.tolist() == [[3, 3], [3, 3]]


@pytest.mark.usefixtures("swaps_on_conversion")
def test_a_module_that_is_converted_and_loaded_in_a_scope_by_swapping():
    with ds.dispose_scope():
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        state = {name: torch.full_like(value, 2) for name, value in model.state_dict().items()}
        model.load_state_dict(state)
        model.double()
    assert {name: value.double().mean().item() for name, value in model.state_dict().items()} == dict.fromkeys(state, 2)
    assert model(torch.ones(4, 3, dtype=torch.float64)).shape == (4, 3)
