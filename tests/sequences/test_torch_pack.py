"""Packing and padding PyTorch's tensors gives what PyTorch gives, bit for bit, with gradients."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import disposescope as ds

torch = pytest.importorskip("torch")
rnn = pytest.importorskip("torch.nn.utils.rnn")

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.int64,
    torch.uint8,
    torch.bool,
]
PAIRS = [(name, getattr(ds, name), getattr(rnn, name)) for name in ("pack_sequence", "pad_sequence")]


def flat(tree: Any) -> list[Any]:
    if isinstance(tree, (list, tuple)):
        return [leaf for child in tree for leaf in flat(child)]
    return [tree]


def assert_same_bits(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    assert len(flat(ours)) == len(flat(theirs))
    for mine, own in zip(flat(ours), flat(theirs), strict=True):
        assert type(mine) is type(own)
        if own is not None:
            assert (mine.dtype, mine.shape, mine.device) == (own.dtype, own.shape, own.device)
            if own.device.type != "meta":
                # Not by value: NaNs and negative zeros count.
                assert torch.equal(*(each.detach().contiguous().flatten().view(torch.uint8) for each in (mine, own)))


def both_ways(function: Callable[[], Any], leaves: list[Any]) -> tuple[Any, list[Any]]:
    result = function()
    moving = [tensor for tensor in flat(result) if tensor is not None and tensor.requires_grad]
    weights = [torch.linspace(-1, 1, tensor.numel(), dtype=tensor.dtype).view(tensor.shape) for tensor in moving]
    loss = sum((tensor * weight).sum() for tensor, weight in zip(moving, weights, strict=True))
    return result, list(torch.autograd.grad(loss, leaves))


@pytest.mark.parametrize("seed", range(40))
def test_values_and_gradients_are_those_of_pytorch(seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    trailing = chance.choice([(), (3,), (2, 40)])
    lengths = [chance.randint(1, 9) for _ in range(chance.randint(1, 40))]
    enforce_sorted = chance.random() < 0.4
    if enforce_sorted:
        lengths.sort(reverse=True)
    batch_first = chance.random() < 0.5
    sequences = [torch.randn(length, *trailing, requires_grad=True) for length in lengths]
    padded = rnn.pad_sequence(sequences, batch_first).detach()
    if chance.random() < 0.3:
        padded = padded.transpose(0, 1).contiguous().transpose(0, 1)
    padded.requires_grad_()
    fields = rnn.pack_sequence(sequences, enforce_sorted)
    rows = fields.data.detach().requires_grad_()
    packed = rnn.PackedSequence(rows, *fields[1:])
    total = chance.choice([None, max(lengths) + 3])
    side = chance.choice(["left", "right"])
    counts = torch.tensor(lengths)
    calls: list[tuple[Callable[[Any], Any], list[Any]]] = [
        (lambda of: of.pack_sequence(sequences, enforce_sorted), sequences),
        (lambda of: of.pad_sequence(sequences, batch_first, 1.5, side), sequences),
        (lambda of: of.pack_padded_sequence(padded, lengths, batch_first, enforce_sorted), [padded]),
        (lambda of: of.pad_packed_sequence(packed, batch_first, 2.5, total), [rows]),
        (lambda of: of.unpack_sequence(packed), [rows]),
        (lambda of: of.unpad_sequence(padded if batch_first else padded.transpose(0, 1), counts, True), [padded]),
    ]
    for call, leaves in calls:
        ours, our_grads = both_ways(lambda call=call: call(ds), leaves)
        theirs, their_grads = both_ways(lambda call=call: call(rnn), leaves)
        assert_same_bits(ours, theirs)
        assert_same_bits(our_grads, their_grads)
        with torch.no_grad():
            assert_same_bits(call(ds), call(rnn))


SHAPES = {
    "one": ([30], (3,)),
    "one step": ([1] * 20, (3,)),
    "alike": ([12] * 20, (2,)),
    "few": ([9, 30, 2], (4,)),
    "many": ([(7 * place) % 23 + 1 for place in range(40)], ()),
    "long": ([(37 * place) % 90 + 1 for place in range(24)], (2,)),
    "wide": ([150, 3, 70], (600,)),
    "wide and many": ([(37 * place) % 80 + 1 for place in range(20)], (40,)),
    "longer than many": ([(5 * place) % 211 + 1 for place in range(130)], ()),
}


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("enforce_sorted", [False, True])
@pytest.mark.parametrize("graph", [False, True])
def test_every_way_through_gives_the_same_bits(
    shape: str, batch_first: bool, enforce_sorted: bool, graph: bool
) -> None:
    lengths, trailing = SHAPES[shape]
    if enforce_sorted:
        lengths = sorted(lengths, reverse=True)
    torch.manual_seed(0)
    sequences = [torch.randn(length, *trailing).requires_grad_(graph) for length in lengths]
    padded = rnn.pad_sequence(sequences, batch_first).detach().requires_grad_(graph)
    other_way = padded.detach().transpose(0, 1).requires_grad_(graph)
    fields = rnn.pack_sequence(sequences, enforce_sorted)
    rows = fields.data.detach().requires_grad_(graph)
    packed = rnn.PackedSequence(rows, *fields[1:])
    counts = torch.tensor(lengths)
    calls: list[tuple[Callable[[Any], Any], list[Any]]] = [
        (lambda of: of.pack_sequence(sequences, enforce_sorted), sequences),
        (lambda of: of.pad_sequence(sequences, batch_first), sequences),
        (lambda of: of.pad_sequence(sequences, batch_first, 2.0, "left"), sequences),
        (lambda of: of.pack_padded_sequence(padded, counts, batch_first, enforce_sorted), [padded]),
        (lambda of: of.pack_padded_sequence(other_way, lengths, not batch_first, enforce_sorted), [other_way]),
        (lambda of: of.pad_packed_sequence(packed, batch_first), [rows]),
        (lambda of: of.pad_packed_sequence(packed, batch_first, -1.0, max(lengths) + 2), [rows]),
        (lambda of: of.unpack_sequence(packed), [rows]),
        (lambda of: of.unpad_sequence(padded if batch_first else other_way, counts, True), [padded, other_way]),
    ]
    for call, leaves in calls:
        if not graph:
            assert_same_bits(call(ds), call(rnn))
            with ds.dispose_scope() as scope:
                assert_same_bits(call(ds), call(rnn))
                assert len(scope) == 0
            continue
        ours, theirs = call(ds), call(rnn)
        assert_same_bits(ours, theirs)
        moving = [
            [tensor for tensor in flat(tree) if tensor is not None and tensor.requires_grad] for tree in (ours, theirs)
        ]
        # Negative zeros too: nothing is ever added to a gradient on its way.
        weights = [torch.randn_like(tensor).round() * -1.0 for tensor in moving[1]]
        grads = [torch.autograd.grad(tensors, leaves, weights, allow_unused=True) for tensors in moving]
        assert_same_bits(*grads)


@pytest.mark.parametrize("count", [1, 3, 20])
@pytest.mark.parametrize("alike", [False, True])
def test_a_padding_value_that_does_not_fit_is_refused_whichever_way_is_taken(count: int, alike: bool) -> None:
    for dtype, value in ((torch.int64, float("nan")), (torch.uint8, 300.0), (torch.float16, 1e9)):
        sequences = [torch.ones(9 if alike else 9 + place % 3, 2, dtype=dtype) for place in range(count)]
        packed = rnn.pack_sequence(sequences, enforce_sorted=False)
        for name, given in (("pad_sequence", sequences), ("pad_packed_sequence", packed)):
            with pytest.raises(RuntimeError) as theirs:
                getattr(rnn, name)(given, padding_value=value)
            with pytest.raises(RuntimeError) as ours:
                getattr(ds, name)(given, padding_value=value)
            assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    "options", [(1, 0.0, "right"), (True, "0", "right"), (True, 0.0, "top"), (True, 0.0, ["left"])]
)
def test_wrong_options_are_refused_as_by_pytorch(options: tuple[Any, ...]) -> None:
    for sequences in ([torch.ones(2)], [torch.ones(2), torch.ones(1)], [torch.ones(2)] * 20):
        try:
            expected = rnn.pad_sequence(sequences, *options)
        except (TypeError, RuntimeError) as error:
            with pytest.raises(type(error)) as ours:
                ds.pad_sequence(sequences, *options)
            assert str(ours.value) == str(error)  # noqa: PT017  # what PyTorch says is known here only
        else:
            assert_same_bits(ds.pad_sequence(sequences, *options), expected)


def test_lazily_conjugated_and_negated_sequences_are_packed_by_value() -> None:
    numbers = torch.randn(12, 2, dtype=torch.complex64)
    for lazy in (numbers.conj(), numbers.conj().imag):
        for sequences in ([lazy], [lazy, lazy[:5]], [lazy[: 1 + place % 12] for place in range(20)]):
            assert_same_bits(ds.pad_sequence(sequences), rnn.pad_sequence(sequences))
            assert_same_bits(ds.pack_sequence(sequences, False), rnn.pack_sequence(sequences, False))
        assert_same_bits(
            ds.pack_padded_sequence(lazy[:, :, None], [2] * 12, True),
            rnn.pack_padded_sequence(lazy[:, :, None], [2] * 12, True),
        )


@pytest.mark.parametrize("lengths", [[3, 0], [4, 2], [2, 3], [3], [3, 2, 1], [[3, 2]], [3.7, 2.2]])
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("enforce_sorted", [False, True])
def test_lengths_that_do_not_fit_are_refused_as_by_pytorch(lengths: Any, graph: bool, enforce_sorted: bool) -> None:
    for time in (3, 20, 60):
        scaled = (torch.tensor(lengths) * (time // 3)).tolist()
        for given in (scaled, torch.tensor(scaled)):
            padded = torch.randn(2, time, 3, requires_grad=graph)
            try:
                expected = rnn.pack_padded_sequence(padded, given, True, enforce_sorted)
            except (RuntimeError, IndexError) as error:
                with pytest.raises(type(error)) as ours:
                    ds.pack_padded_sequence(padded, given, True, enforce_sorted)
                assert str(ours.value) == str(error)  # noqa: PT017  # what PyTorch says is known here only
            else:
                assert_same_bits(ds.pack_padded_sequence(padded, given, True, enforce_sorted), expected)


def test_gradients_in_a_batch_and_a_graph_of_the_gradient_are_there() -> None:
    rows = torch.randn(20, 3, requires_grad=True)
    padded = ds.pad_sequence([rows, rows[:7], rows[:3], rows[:2], rows[:1]])
    many = torch.randn(4, *padded.shape)
    (batched,) = torch.autograd.grad(padded, rows, many, is_grads_batched=True, retain_graph=True)
    for grad, weight in zip(batched, many, strict=True):
        torch.testing.assert_close(grad, torch.autograd.grad(padded, rows, weight, retain_graph=True)[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_every_dtype_and_device_is_kept(dtype: Any, device: str) -> None:
    sequences = [torch.ones(length, 40, dtype=dtype, device=device) for length in (2, 5, 3)]
    for _, ours, theirs in PAIRS:
        assert_same_bits(ours(sequences, False), theirs(sequences, False))
    packed = rnn.pack_sequence([torch.ones(length, 40, dtype=dtype) for length in (2, 5, 3)], False)
    assert_same_bits(ds.unpack_sequence(packed), rnn.unpack_sequence(packed))
    assert_same_bits(ds.pad_packed_sequence(packed), rnn.pad_packed_sequence(packed))


@pytest.mark.parametrize(
    "sequences",
    [
        [],
        [torch.ones(0)],
        [torch.ones(2), torch.ones(3)],
        [torch.ones(2), torch.ones(2, 2)],
        [torch.tensor(1.0)],
        [torch.ones(2, 0)],
    ],
)
def test_errors_are_those_of_pytorch(sequences: list[Any]) -> None:
    if not sequences:
        with pytest.raises(RuntimeError, match="empty list"):
            ds.pack_sequence(sequences)
        return
    with pytest.raises(Exception) as theirs:  # noqa: PT011  # whatever it is
        rnn.pack_sequence(sequences)
    with pytest.raises(theirs.type) as ours:
        ds.pack_sequence(sequences)
    assert str(ours.value) == str(theirs.value)


def test_a_wrong_total_length_or_length_raises_as_in_pytorch() -> None:
    packed = rnn.pack_sequence([torch.ones(3, 40), torch.ones(2, 40)])
    with pytest.raises(ValueError, match="total_length"):
        ds.pad_packed_sequence(packed, total_length=2)
    with pytest.raises(RuntimeError, match="sorted"):
        ds.pack_padded_sequence(torch.ones(3, 2, 40), [2, 3])


def test_the_second_derivative_is_there() -> None:
    sequences = [torch.randn(length, dtype=torch.float64, requires_grad=True) for length in (3, 1, 2)]
    for call in (
        lambda *given: ds.pack_sequence(given, False).data,
        lambda *given: ds.pad_sequence(given),
        lambda *given: ds.unpack_sequence(ds.pack_sequence(given, False))[1],
    ):
        assert torch.autograd.gradgradcheck(lambda *given, call=call: call(*given) ** 2, sequences)


def test_transforms_modes_and_subclasses_see_pytorchs_own_functions() -> None:
    rows = torch.randn(3, 2)
    assert torch.func.grad(lambda x: ds.pad_sequence([x, x]).sum())(rows).tolist() == [[2.0, 2.0]] * 3
    seen: list[str] = []

    class Watching(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Watching():
        ds.pack_sequence([rows, rows])
    assert "pad_sequence" in seen

    class Own(torch.Tensor):
        pass

    assert type(ds.pad_sequence([torch.ones(2).as_subclass(Own), torch.ones(1).as_subclass(Own)])) is Own


def test_a_recurrent_network_takes_what_is_packed() -> None:
    network = torch.nn.LSTM(3, 2)
    sequences = [torch.randn(length, 3) for length in (2, 4)]
    ours, _ = network(ds.pack_sequence(sequences, enforce_sorted=False))
    theirs, _ = network(rnn.pack_sequence(sequences, enforce_sorted=False))
    assert torch.equal(ours.data, theirs.data)


def test_sequences_of_two_frameworks_are_refused() -> None:
    for function in (ds.pack_sequence, ds.pad_sequence):
        with pytest.raises(TypeError, match=r"sequence 0 is a torch.Tensor and sequence 1 a numpy.ndarray"):
            function([torch.ones(2), np.ones(1)])
    assert ds.pack_padded_sequence(torch.ones(2, 1), np.array([2])).data.tolist() == [1.0, 1.0]


def test_devices_are_not_mixed_also_where_pytorch_copies_in_silence() -> None:
    here, there = torch.ones(3), torch.ones(2, device="meta")
    for function in (ds.pack_sequence, ds.pad_sequence):
        for pair in ([here, there], [there, here]):
            with pytest.raises(ds.DeviceMismatchError) as caught:
                function(pair)
            assert caught.value.members == ("sequence 0", "sequence 1")
            assert set(caught.value.devices) == {"cpu:0", "meta:0"}
    packed = rnn.pack_sequence([torch.ones(2), torch.ones(3)], False)
    mixed = rnn.PackedSequence(packed.data.to("meta"), *packed[1:])
    for verb in (ds.pad_packed_sequence, ds.unpack_sequence):
        with pytest.raises(ds.DeviceMismatchError, match="data is on meta:0 and sorted_indices on cpu:0"):
            verb(mixed)


def test_the_padded_batch_is_not_transposed_in_place() -> None:
    padded = torch.arange(6).view(3, 2)
    assert [row.tolist() for row in ds.unpad_sequence(padded, [3, 1])] == [[0, 2, 4], [1]]
    assert padded.shape == (3, 2)


@pytest.mark.parametrize("lengths", [[1], [1, 2, 3]])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("convert", [list, torch.tensor])
def test_a_wrong_number_of_lengths_is_refused(lengths: list[int], batch_first: bool, convert: Any) -> None:
    padded = torch.ones((2, 3) if batch_first else (3, 2))
    with pytest.raises(ValueError, match=f"got {len(lengths)} lengths for 2 sequences"):
        ds.unpad_sequence(padded, convert(lengths), batch_first)


def test_unpacked_sequences_have_memory_of_their_own() -> None:
    packed = ds.pack_sequence([torch.ones(3), torch.ones(2)])
    storages = {sequence.untyped_storage().data_ptr() for sequence in ds.unpack_sequence(packed)}
    assert len(storages) == 2
    ds.dispose(packed)


def test_disposed_tensors_are_refused() -> None:
    with ds.dispose_scope():
        dead = torch.ones(2)
        packed = ds.pack_sequence([dead])
    for call in (
        lambda: ds.pack_sequence([dead, torch.ones(1)]),
        lambda: ds.pad_sequence([torch.ones(1), dead]),
        lambda: ds.pack_padded_sequence(dead, [1]),
        lambda: ds.unpack_sequence(packed),
        lambda: ds.pad_packed_sequence(packed),
        lambda: ds.unpad_sequence(dead, [1]),
    ):
        with pytest.raises(ds.DisposedError):
            call()
