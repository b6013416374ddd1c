"""Padding PyTorch's tensors with little to move: short ways give and refuse what PyTorch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import disposescope as ds

torch = pytest.importorskip("torch")
rnn = pytest.importorskip("torch.nn.utils.rnn")
forward_ad = pytest.importorskip("torch.autograd.forward_ad")

BATCHES = {
    "one sequence": [30],
    "one sequence of one step": [1],
    "one step": [1] * 5,
    "few": [20, 7, 3, 1],
    "few, alike": [9, 9, 9],
    "long": [80, 9, 3],
    "longer": [230, 100, 100, 7],
}


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, as bytes and gradients, or what it raises."""
    try:
        result = call()
    except Exception as error:  # whatever PyTorch raises
        return type(error), str(error)
    tensors = [tensor for tensor in (result if isinstance(result, tuple) else (result,)) if tensor is not None]
    return [(tensor.dtype, tuple(tensor.shape), tensor.tolist()) for tensor in tensors]


def grads_of(call: Callable[[], Any], leaves: list[Any]) -> list[Any]:
    result = call()
    made = result[0] if isinstance(result, tuple) else result
    # A negative zero stays one where PyTorch copies, and is none where it adds.
    weights = torch.linspace(-1, 1, made.numel()).view(made.shape).round(decimals=1) * 0.0
    return [grad.signbit().tolist() for grad in torch.autograd.grad(made, leaves, weights)]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("enforce_sorted", [False, True])
def test_little_to_move_is_moved_as_by_pytorch(batch: str, batch_first: bool, enforce_sorted: bool) -> None:
    lengths = BATCHES[batch]
    if not enforce_sorted:
        lengths = lengths[::-1]
    sequences = [torch.randn(length, 2, requires_grad=True) for length in lengths]
    padded = rnn.pad_sequence(sequences, batch_first).detach().requires_grad_()
    fields = rnn.pack_sequence(sequences, enforce_sorted)
    rows = fields.data.detach().requires_grad_()
    packed = rnn.PackedSequence(rows, *fields[1:])
    calls: list[tuple[Callable[[Any], Any], list[Any]]] = [
        (lambda of: of.pad_sequence(sequences, batch_first), sequences),
        (lambda of: of.pad_sequence(sequences, batch_first, 1.5, "left"), sequences),
        (lambda of: of.pack_padded_sequence(padded, torch.tensor(lengths), batch_first, enforce_sorted), [padded]),
        (lambda of: of.pad_packed_sequence(packed, batch_first), [rows]),
        (lambda of: of.pad_packed_sequence(packed, batch_first, 0.5, max(lengths) + 2), [rows]),
    ]
    for call, leaves in calls:
        assert outcome(lambda call=call: call(ds)) == outcome(lambda call=call: call(rnn))
        assert grads_of(lambda call=call: call(ds), leaves) == grads_of(lambda call=call: call(rnn), leaves)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("sizes", [[1], [3], [1, 1, 1], [2, 1], [1] * 9, [2] * 90])
def test_batch_sizes_that_do_not_belong_to_the_data_are_refused_as_by_pytorch(graph: bool, sizes: list[int]) -> None:
    for rows in (1, 3, 9):
        for dtype in (torch.int64, torch.int32):
            packed = rnn.PackedSequence(torch.ones(rows, 2, requires_grad=graph), torch.tensor(sizes, dtype=dtype))
            assert outcome(lambda packed=packed: ds.pad_packed_sequence(packed)) == outcome(
                lambda packed=packed: rnn.pad_packed_sequence(packed)
            )


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("places", [[0], [1, 0], [1, 1], [2, 0], [-1, 0], [0, 1, 0]])
def test_places_that_are_no_permutation_are_taken_as_by_pytorch(graph: bool, places: list[int]) -> None:
    for sizes in ([2] * 9, [2], [1] * 9):
        packed = rnn.PackedSequence(
            torch.ones(sum(sizes), 2, requires_grad=graph), torch.tensor(sizes), None, torch.tensor(places)
        )
        assert outcome(lambda packed=packed: ds.pad_packed_sequence(packed)) == outcome(
            lambda packed=packed: rnn.pad_packed_sequence(packed)
        )


@pytest.mark.parametrize(
    "shapes",
    [
        [(3, 4), (2, 1)],
        [(3, 2, 3), (2, 3, 2)],
        [(3, 2, 3), (3, 3, 2)],
        [(3, 1, 4), (1, 4)],
        [(3, 2), (2,)],
        [(3, 2), ()],
        [(0, 2), (3, 2)],
        [(3, 2), (0, 5)],
        [(3, 0), (2, 0)],
        [(), ()],
    ],
)
@pytest.mark.parametrize("graph", [False, True])
def test_sequences_of_different_shapes_are_broadcast_or_refused_as_by_pytorch(
    shapes: list[tuple[int, ...]], graph: bool
) -> None:
    for several in (1, 10):
        sequences = [torch.ones(shape, requires_grad=graph) for shape in shapes * several]
        assert outcome(lambda sequences=sequences: ds.pad_sequence(sequences)) == outcome(
            lambda sequences=sequences: rnn.pad_sequence(sequences)
        )


def test_dtypes_are_mixed_and_devices_are_not_where_there_is_a_graph() -> None:
    moving, other = torch.ones(3, requires_grad=True), torch.ones(2, dtype=torch.float64, requires_grad=True)
    ours, theirs = (of.pad_sequence([moving, other]) for of in (ds, rnn))
    assert ours.dtype == theirs.dtype
    weights = torch.ones_like(theirs)
    assert [grad.dtype for grad in torch.autograd.grad(ours, [moving, other], weights)] == [
        torch.float32,
        torch.float64,
    ]
    with pytest.raises(ds.DeviceMismatchError):
        ds.pad_sequence([moving, torch.ones(2, device="meta")])


# PyTorch scripts its formulas for them when the first one is asked for.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_derivatives_that_go_forward_are_there() -> None:
    fields = rnn.pack_sequence([torch.ones(9, 2), torch.ones(4, 2)])
    with forward_ad.dual_level():
        rows = forward_ad.make_dual(torch.ones(9, 2), torch.full((9, 2), 3.0))
        padded = ds.pad_sequence([rows, torch.ones(4, 2)])
        assert forward_ad.unpack_dual(padded).tangent.sum() == 54
        data = forward_ad.make_dual(torch.ones(13, 2), torch.full((13, 2), 2.0))
        again, _ = ds.pad_packed_sequence(rnn.PackedSequence(data, fields.batch_sizes))
        assert forward_ad.unpack_dual(again).tangent.sum() == 52


def test_what_is_made_below_the_graph_is_a_tensor_like_any() -> None:
    padded = ds.pad_sequence([torch.ones(9), torch.ones(4)])
    again, lengths = ds.pad_packed_sequence(rnn.pack_sequence([torch.ones(9), torch.ones(4)]))
    for made in (padded, again):
        before = made._version
        made[0].mul_(2)
        assert made._version > before
        made.requires_grad_()
        (made.view(-1) ** 2).sum().backward()
        assert torch.equal(made.grad, 2 * made)
        assert not made.is_inference()
    assert lengths.tolist() == [9, 4]
