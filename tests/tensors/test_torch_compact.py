"""A small view of a big tensor, moved out compact, is the same tensor with memory of its own."""

import pytest

import disposescope as ds

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def test_the_big_storage_goes_and_values_and_identity_stay() -> None:
    with ds.dispose_scope() as scope:
        big = torch.arange(100_000)
        row = big[10:20]
        assert scope.move_to_outer(row, compact=True) is row
    assert row.tolist() == list(range(10, 20))
    assert row.untyped_storage().nbytes() == 80


def test_the_graph_stays_and_gives_the_same_gradients() -> None:
    weight = torch.arange(1000.0, requires_grad=True)
    with ds.dispose_scope() as scope:
        row = (weight * weight)[5:8]
        scope.move_to_outer(row, compact=True)
    assert row.requires_grad
    row.sum().backward()
    assert torch.equal(weight.grad.nonzero().flatten(), torch.tensor([5, 6, 7]))
    assert weight.grad[5:8].tolist() == [10.0, 12.0, 14.0]


def test_a_leaf_stays_a_leaf() -> None:
    with ds.dispose_scope() as scope:
        row = torch.zeros(1000)[:4].requires_grad_()
        row.sum().backward()
        scope.move_to_outer(row, compact=True)
    assert (row.is_leaf, row.requires_grad) == (True, True)
    assert row.grad.tolist() == [1.0] * 4
    assert row.untyped_storage().nbytes() == 16


def test_inference_tensors_columns_and_packed_sequences() -> None:
    with ds.dispose_scope() as scope:
        with torch.inference_mode():
            inferred = torch.zeros(1000)[:4]
        column = torch.arange(1000).reshape(10, 100)[:, 0]
        packed = ds.pack_sequence([torch.zeros(1000, 4)[:3], torch.zeros(1000, 4)[:2]])
        scope.move_to_outer([inferred, column, packed], compact=True)
    assert inferred.is_inference()
    assert column.tolist() == list(range(0, 1000, 100))
    assert column.untyped_storage().nbytes() == 80
    assert torch.equal(packed.data, torch.zeros(5, 4))


def test_a_retained_gradient_is_refused_and_nothing_is_lost() -> None:
    weight = torch.ones(1000, requires_grad=True)
    with ds.dispose_scope() as scope:
        row = (weight * 2)[:3]
        row.retain_grad()
        with pytest.raises(ds.DisposeScopeError, match="retain"):
            scope.move_to_outer(row, compact=True)
        assert row in scope
        row.sum().backward()
        assert row.grad.tolist() == [1.0, 1.0, 1.0]
