"""A tensor that is made of other tensors leaves a scope with them."""

import pytest

import disposescope as ds

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.testing._internal.two_tensor import TwoTensor


def jagged():
    return torch.nested.nested_tensor_from_jagged(torch.ones(5, 3), torch.tensor([0, 2, 5]))


def masked():
    return torch.masked.masked_tensor(torch.ones(3), torch.tensor([True, False, True]))


def two():
    return TwoTensor(torch.ones(3), torch.ones(3))


MADE = {
    "a jagged one": (jagged, lambda x: float((x * 2).values().sum()), 30.0),
    "what an operation made of a jagged one": (lambda: jagged() * 2, lambda x: float(x.values().sum()), 30.0),
    "one of two": (two, lambda x: float((x + 1).a.sum()), 6.0),
    "one of two of two": (lambda: TwoTensor(two(), two()), lambda x: float((x + 1).a.a.sum()), 6.0),
    "what an operation made of one of two": (lambda: two() + 1, lambda x: float((x + 1).a.sum()), 9.0),
    "a masked one": (masked, lambda x: float((x + 1).sum().get_data()), 4.0),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of (nested|MaskedTensors):UserWarning")
@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("verb", ["move_to_outer", "detach", "dispose_everything_but"])
def test_what_is_moved_out_works_afterwards(name: str, verb: str) -> None:
    make, use, expected = MADE[name]
    with ds.dispose_scope() as outer:
        with ds.dispose_scope() as scope:
            made = make()
            getattr(scope, verb)({"made": made})
            if verb == "dispose_everything_but":
                scope.move_to_outer(made)
            assert len(scope) == 0
        assert use(made) == expected
        assert len(outer) >= (verb != "detach")


def test_what_a_wrapper_holds_of_another_scope_stays_there() -> None:
    with ds.dispose_scope() as outer:
        given = torch.ones(3)
        with ds.dispose_scope() as scope:
            made = TwoTensor(given, torch.ones(3))
            scope.move_to_outer(made)
            assert given in outer
        assert float((made + 1).b.sum()) == 6.0


def test_a_wrapper_that_is_not_moved_out_refuses() -> None:
    with ds.dispose_scope():
        made = two()
    with pytest.raises(ds.DisposedError):
        made + 1
