"""What the sequence functions keep is their result's.

No array escapes from a strict scope, and no way back is cut off.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.nn.utils.rnn")

import disposescope as ds


def sequences(lengths, graph=False):
    return [torch.randn(length, 3, requires_grad=graph) for length in lengths]


SHAPES = {
    "two": (5, 3),
    "alone": (40,),
    "alike": (4, 4, 4),
    "long": (250, 100, 60),
    "wide": tuple(range(90, 70, -1)),
    "many": tuple(range(40, 0, -2)),
}


def call(name, given, ordered):
    lengths = [len(sequence) for sequence in given]
    if name == "pack_sequence":
        return ds.pack_sequence(given, ordered)
    if name == "pack_padded_sequence":
        return ds.pack_padded_sequence(ds.pad_sequence(given), lengths, enforce_sorted=ordered)
    if name == "pad_packed_sequence":
        return ds.pad_packed_sequence(ds.pack_sequence(given, ordered))
    if name == "unpack_sequence":
        return ds.unpack_sequence(ds.pack_sequence(given, ordered))
    if name == "unpad_sequence":
        return ds.unpad_sequence(ds.pad_sequence(given), torch.tensor(lengths))
    return ds.pad_sequence(given)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "name",
    [
        "pack_sequence",
        "pack_padded_sequence",
        "pad_sequence",
        "pad_packed_sequence",
        "unpack_sequence",
        "unpad_sequence",
    ],
)
def test_what_was_moved_out_of_a_strict_scope_brings_its_memory_along(name, shape, ordered, graph):
    given = sequences(SHAPES[shape], graph)

    with ds.dispose_scope(strict=True) as scope:
        moved = scope.move_to_outer(call(name, given, ordered))

    for mine, own in zip(flat(moved), flat(call(name, given, ordered)), strict=True):
        assert torch.equal(mine, own)
    if graph:
        sum(tensor.sum() for tensor in flat(moved) if tensor.requires_grad).backward()
        assert all(torch.equal(sequence.grad, torch.ones_like(sequence)) for sequence in given)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_way_back_does_not_ask_for_what_was_disposed_or_changed(shape, ordered, batch_first):
    given = sequences(SHAPES[shape], graph=True)
    lengths = [len(sequence) for sequence in given]

    with ds.dispose_scope() as scope:
        packed = ds.pack_padded_sequence(ds.pad_sequence(given, batch_first), lengths, batch_first, ordered)
        padded, counted = ds.pad_packed_sequence(packed, batch_first)
        counted.sub_(1)
        weights = scope.move_to_outer(torch.arange(float(padded.numel())).view(padded.shape))
        loss = scope.move_to_outer((padded * weights).sum())
    loss.backward()

    rows = [weights[at] if batch_first else weights[:, at] for at in range(len(given))]
    for sequence, row in zip(given, rows, strict=True):
        assert torch.equal(sequence.grad, row[: len(sequence)])
    assert ds.is_disposed(packed)


def flat(tree):
    if isinstance(tree, (list, tuple)):
        return [tensor for each in tree for tensor in flat(each)]
    return [] if tree is None else [tree]
