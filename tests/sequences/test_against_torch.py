"""The sequence functions return what PyTorch's return, bit for bit, and refuse what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import disposescope as ds

torch = pytest.importorskip("torch")
rnn = torch.nn.utils.rnn

DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
TRAILING = [(), (1,), (3,), (2, 3), (2, 1, 2)]

dtypes = st.sampled_from(DTYPES)
trailings = st.sampled_from(TRAILING)
lengths = st.lists(st.integers(1, 9), min_size=1, max_size=6)
# Above 16 sequences PyTorch does not sort lengths stably.
many_lengths = st.lists(st.integers(1, 6), min_size=17, max_size=90)
# And no two of one length, so that there is one order.
different_lengths = st.lists(st.integers(1, 90), min_size=17, max_size=40, unique=True)
flags = st.booleans()
paddings = st.sampled_from([0.0, 1.0, -1.5, 7, 2.9, float("nan"), float("inf"), 300, -1, True])
relaxed = settings(deadline=None, max_examples=60)


def sequences_of(lengths: list[int], dtype: str, trailing: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [numbers((length, *trailing), dtype, random) for length in lengths]


def numbers(shape: tuple[int, ...], dtype: str, random: np.random.Generator) -> np.ndarray:
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if dtype.startswith("complex"):
        return (random.normal(size=shape) + 1j * random.normal(size=shape)).astype(dtype)
    if dtype.startswith("float"):
        return random.normal(size=shape).astype(dtype)
    return random.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)


def in_torch(tree: Any) -> Any:
    if isinstance(tree, np.ndarray):
        return torch.from_numpy(tree.copy())
    if isinstance(tree, list):
        return [in_torch(item) for item in tree]
    return tree


def assert_same(ours: Any, theirs: Any) -> None:
    if theirs is None:
        assert ours is None
    elif isinstance(theirs, torch.Tensor):
        assert isinstance(ours, ds.Tensor)
        array, wanted = ours.numpy(), theirs.resolve_conj().numpy()
        assert array.dtype == wanted.dtype
        assert array.shape == wanted.shape
        assert array.tobytes() == wanted.tobytes()
    elif isinstance(theirs, rnn.PackedSequence):
        assert type(ours) is ds.PackedSequence
        for mine, wanted in zip(ours, theirs, strict=True):
            assert_same(mine, wanted)
    else:
        assert type(ours) is type(theirs)
        assert len(ours) == len(theirs)
        for mine, wanted in zip(ours, theirs, strict=True):
            assert_same(mine, wanted)


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "returned", call()
    except Exception as error:
        return "raised", type(error)


def assert_same_outcome(ours: Callable[[], Any], theirs: Callable[[], Any]) -> None:
    did, mine = outcome(ours)
    does, wanted = outcome(theirs)
    assert did == does, (mine, wanted)
    if did == "raised":
        assert mine is wanted
    else:
        assert_same(mine, wanted)


@relaxed
@given(lengths, dtypes, trailings, flags, paddings, st.sampled_from(["left", "right"]), flags)
def test_pad_sequence(
    counts: list[int], dtype: str, trailing: tuple[int, ...], batch_first: bool, value: Any, side: str, empty: bool
) -> None:
    sequences = sequences_of([*counts, 0] if empty else counts, dtype, trailing)
    assert_same_outcome(
        lambda: ds.pad_sequence(sequences, batch_first, value, side),
        lambda: rnn.pad_sequence(in_torch(sequences), batch_first, value, side),
    )


@relaxed
@given(lengths | different_lengths, dtypes, trailings, flags)
def test_pack_sequence(counts: list[int], dtype: str, trailing: tuple[int, ...], enforce_sorted: bool) -> None:
    if enforce_sorted:
        counts = sorted(counts, reverse=True)
    sequences = sequences_of(counts, dtype, trailing)
    theirs = rnn.pack_sequence(in_torch(sequences), enforce_sorted)
    assert_same(ds.pack_sequence(sequences, enforce_sorted), theirs)
    assert_same(ds.pack_sequence([ds.asarray(sequence) for sequence in sequences], enforce_sorted), theirs)


@relaxed
@given(lengths | different_lengths, dtypes, trailings, flags, flags, st.integers(-2, 2), flags)
def test_pack_padded_sequence(
    counts: list[int],
    dtype: str,
    trailing: tuple[int, ...],
    batch_first: bool,
    enforce_sorted: bool,
    longer: int,
    strided: bool,
) -> None:
    if enforce_sorted:
        counts = sorted(counts, reverse=True)
    time = max(1, max(counts) + longer)
    batch = len(counts)
    padded = numbers((batch, time, *trailing), dtype, np.random.default_rng(len(counts)))
    if not batch_first:
        padded = padded.swapaxes(0, 1) if strided else np.ascontiguousarray(padded.swapaxes(0, 1))
    theirs = rnn.pack_padded_sequence(in_torch(padded), counts, batch_first, enforce_sorted)
    for given_lengths in (counts, np.array(counts), ds.asarray(counts), tuple(counts), np.array(counts, np.float32)):
        assert_same(ds.pack_padded_sequence(padded, given_lengths, batch_first, enforce_sorted), theirs)
    assert_same(ds.pack_padded_sequence(ds.asarray(padded), counts, batch_first, enforce_sorted), theirs)


@relaxed
@given(lengths | many_lengths, dtypes, trailings, flags, flags, paddings, st.none() | st.integers(0, 12))
def test_pad_packed_sequence(
    counts: list[int],
    dtype: str,
    trailing: tuple[int, ...],
    enforce_sorted: bool,
    batch_first: bool,
    value: Any,
    total: int | None,
) -> None:
    if enforce_sorted:
        counts = sorted(counts, reverse=True)
    sequences = sequences_of(counts, dtype, trailing)
    ours = ds.pack_sequence(sequences, enforce_sorted)
    theirs = rnn.pack_sequence(in_torch(sequences), enforce_sorted)
    assert_same_outcome(
        lambda: ds.pad_packed_sequence(ours, batch_first, value, total),
        lambda: rnn.pad_packed_sequence(theirs, batch_first, value, total),
    )


@relaxed
@given(lengths | many_lengths, dtypes, trailings, flags)
def test_unpack_sequence(counts: list[int], dtype: str, trailing: tuple[int, ...], enforce_sorted: bool) -> None:
    if enforce_sorted:
        counts = sorted(counts, reverse=True)
    sequences = sequences_of(counts, dtype, trailing)
    unpacked = ds.unpack_sequence(ds.pack_sequence(sequences, enforce_sorted))
    assert_same(unpacked, rnn.unpack_sequence(rnn.pack_sequence(in_torch(sequences), enforce_sorted)))
    for sequence, original in zip(unpacked, sequences, strict=True):
        assert sequence.tolist() == original.tolist()


@relaxed
@given(st.lists(st.integers(-2, 9), min_size=1, max_size=6), dtypes, trailings, flags, flags)
def test_unpad_sequence(
    counts: list[int], dtype: str, trailing: tuple[int, ...], batch_first: bool, halves: bool
) -> None:
    shape = (len(counts), 6) if batch_first else (6, len(counts))
    padded = numbers((*shape, *trailing), dtype, np.random.default_rng(1))
    given_lengths = np.array(counts) + 0.5 if halves else np.array(counts)
    # PyTorch transposes its argument in place; ours must be left as it was.
    before = padded.copy()
    theirs = rnn.unpad_sequence(in_torch(padded), torch.from_numpy(given_lengths), batch_first)
    assert_same(ds.unpad_sequence(padded, given_lengths, batch_first), theirs)
    assert padded.tobytes() == before.tobytes()


def test_lengths_that_share_one_element_are_not_sorted() -> None:
    counts = np.broadcast_to(np.int64(3), (20,))
    theirs = rnn.pack_padded_sequence(torch.ones(3, 20), torch.tensor([3]).expand(20), enforce_sorted=False)
    assert_same(ds.pack_padded_sequence(np.ones((3, 20), np.float32), counts, enforce_sorted=False), theirs)


def test_mixed_dtypes_and_shapes_that_broadcast_follow_the_first_sequence() -> None:
    for sequences in (
        [np.ones(3, np.int64), np.array([1.9, -2.9])],
        [np.ones((5, 3), np.float32), np.arange(6.0).reshape(2, 3)],
        [np.ones((3, 3)), np.ones((2, 1))],
        [np.ones((5, 3)), np.arange(3.0)],
        [np.ones(3, np.float16), np.array([True, False])],
    ):
        assert_same(ds.pad_sequence(sequences), rnn.pad_sequence(in_torch(sequences)))
        assert_same(ds.pack_sequence(sequences), rnn.pack_sequence(in_torch(sequences)))


VALUES = [
    -1,
    -1.0,
    -255,
    -256,
    300,
    1e6,
    float("nan"),
    float("-inf"),
    1e60,
    1j,
    2**63,
    2**64,
    2**53 + 1,
    None,
    "a",
    [1],
]


@pytest.mark.parametrize("dtype", [*DTYPES, "uint16", "uint32", "uint64"])
def test_a_padding_value_fits_or_is_refused(dtype: str) -> None:
    sequences = [np.ones(2, dtype), np.zeros(1, dtype)]
    packed = rnn.pack_sequence(in_torch(sequences))
    for value in VALUES:
        if (dtype, value) in [("uint64", 2**64), ("int64", 2**63)]:
            continue  # PyTorch casts a float that just does not fit, which is undefined.
        assert_same_outcome(
            lambda value=value: ds.pad_sequence(sequences, padding_value=value),
            lambda value=value: rnn.pad_sequence(in_torch(sequences), padding_value=value),
        )
        assert_same_outcome(
            lambda value=value: ds.pad_packed_sequence(ds.pack_sequence(sequences), padding_value=value),
            lambda value=value: rnn.pad_packed_sequence(packed, padding_value=value),
        )


ones = np.ones
ints = np.array
BOTH_REFUSE: dict[str, Callable[[Any, Any], Any]] = {
    "no sequences": lambda m, t: m.pad_sequence(t([])),
    "a first sequence without dimensions": lambda m, t: m.pad_sequence(t([ones(())])),
    "a later sequence without dimensions": lambda m, t: m.pad_sequence(t([ones(2), ones(())])),
    "other trailing shapes": lambda m, t: m.pad_sequence(t([ones((2, 3)), ones((2, 4))])),
    "lower rank that does not fit": lambda m, t: m.pad_sequence(t([ones((2, 3)), ones(2)])),
    "higher rank": lambda m, t: m.pad_sequence(t([ones(2), ones((2, 3))])),
    "higher rank of ones": lambda m, t: m.pad_sequence(t([ones((2, 3)), ones((1, 1, 3))])),
    "rank 1 after rank 2 of width 1": lambda m, t: m.pad_sequence(t([ones((2, 1)), ones(3)])),
    "a number for sequences": lambda m, t: m.pad_sequence(3),
    "a list for a sequence": lambda m, t: m.pad_sequence([[1, 2]]),
    "names for sequences": lambda m, t: m.pad_sequence({"a": 1}),
    "a side that is none": lambda m, t: m.pad_sequence(t([ones(2)]), padding_side="middle"),
    "a side that is no str": lambda m, t: m.pad_sequence(t([ones(2)]), padding_side=3),
    "batch_first that is a number": lambda m, t: m.pad_sequence(t([ones(2)]), batch_first=1),
    "batch_first of NumPy": lambda m, t: m.pad_sequence(t([ones(2)]), batch_first=np.True_),
    "pack: no sequences": lambda m, t: m.pack_sequence(t([])),
    "pack: an empty sequence": lambda m, t: m.pack_sequence(t([ones(2), ones(0)])),
    "pack: all empty": lambda m, t: m.pack_sequence(t([ones(0), ones(0)])),
    "pack: no features": lambda m, t: m.pack_sequence(t([ones((2, 0))])),
    "pack: an empty sequence, sorted": lambda m, t: m.pack_sequence(t([ones(0), ones(2)]), enforce_sorted=False),
    "pack: unsorted": lambda m, t: m.pack_sequence(t([ones(1), ones(2)])),
    "pack: no dimensions": lambda m, t: m.pack_sequence(t([ones(())])),
    "pack: trailing shapes": lambda m, t: m.pack_sequence(t([ones((2, 3)), ones((2, 4))])),
    "pack: a number": lambda m, t: m.pack_sequence(3),
    "padded: no lengths, no sequences": lambda m, t: m.pack_padded_sequence(t(ones((3, 0))), []),
    "padded: no lengths": lambda m, t: m.pack_padded_sequence(t(ones((3, 2))), []),
    "padded: no lengths, sorted": lambda m, t: m.pack_padded_sequence(t(ones((3, 2))), [], enforce_sorted=False),
    "padded: too few lengths": lambda m, t: m.pack_padded_sequence(t(ones((3, 2))), [3]),
    "padded: too many, sorted": lambda m, t: m.pack_padded_sequence(t(ones((3, 2))), [3, 2, 1], enforce_sorted=False),
    "padded: length 0": lambda m, t: m.pack_padded_sequence(t(ones((3, 2))), [3, 0]),
    "padded: length -1": lambda m, t: m.pack_padded_sequence(t(ones((3, 2))), [3, -1], enforce_sorted=False),
    "padded: unsorted": lambda m, t: m.pack_padded_sequence(t(ones((3, 2))), [2, 3]),
    "padded: rank 1": lambda m, t: m.pack_padded_sequence(t(ones(3)), [3]),
    "padded: rank 1, sorted": lambda m, t: m.pack_padded_sequence(t(ones(3)), [1, 1, 1], True, False),
    "padded: rank 0": lambda m, t: m.pack_padded_sequence(t(ones(())), [3]),
    "padded: lengths of rank 2": lambda m, t: m.pack_padded_sequence(t(ones((3, 2))), [[3, 2]]),
    "padded: lengths of rank 2, sorted": lambda m, t: m.pack_padded_sequence(t(ones((3, 2))), [[3]], False, False),
    "padded: one length": lambda m, t: m.pack_padded_sequence(t(ones((3, 1))), 3),
    "padded: one length, sorted": lambda m, t: m.pack_padded_sequence(t(ones((3, 1))), 3, enforce_sorted=False),
    "padded: names for lengths": lambda m, t: m.pack_padded_sequence(t(ones((3, 2))), ["a", "b"]),
    "padded: None for lengths": lambda m, t: m.pack_padded_sequence(t(ones((3, 2))), None),
    "padded: None for a length": lambda m, t: m.pack_padded_sequence(t(ones((3, 1))), [None]),
    "padded: a str for lengths": lambda m, t: m.pack_padded_sequence(t(ones((3, 1))), "3"),
    "padded: a dict for lengths": lambda m, t: m.pack_padded_sequence(t(ones((3, 1))), {3: 1}),
    "padded: a complex length": lambda m, t: m.pack_padded_sequence(t(ones((3, 1))), [3 + 1j]),
    "padded: ragged lengths": lambda m, t: m.pack_padded_sequence(t(ones((3, 1))), [[1], [1, 2]]),
    "padded: a length too large": lambda m, t: m.pack_padded_sequence(t(ones((3, 1))), [2**70]),
    "padded: a length far too large": lambda m, t: m.pack_padded_sequence(t(ones((3, 1))), [1e30]),
    "padded: NaN for a length": lambda m, t: m.pack_padded_sequence(t(ones((3, 2))), [float("nan"), 1.0]),
    "padded: no features": lambda m, t: m.pack_padded_sequence(t(ones((3, 2, 0))), [3, 2]),
    "padded: no steps": lambda m, t: m.pack_padded_sequence(t(ones((0, 2))), [1, 1]),
    "padded: a list": lambda m, t: m.pack_padded_sequence([[1, 2]], [1]),
    "padded: batch_first": lambda m, t: m.pack_padded_sequence(t(ones((2, 2))), [2, 2], batch_first=1),
    "packed: total_length too small": lambda m, t: m.pad_packed_sequence(packed(m, t), total_length=2),
    "packed: total_length 0": lambda m, t: m.pad_packed_sequence(packed(m, t), total_length=0),
    "packed: total_length of float": lambda m, t: m.pad_packed_sequence(packed(m, t), total_length=5.0),
    "packed: batch_first": lambda m, t: m.pad_packed_sequence(packed(m, t), batch_first=1),
    "packed: no steps": lambda m, t: m.pad_packed_sequence(by_hand(m, t, ones(0), ints([], np.int64))),
    "packed: growing": lambda m, t: m.pad_packed_sequence(by_hand(m, t, ones(3), ints([1, 2]))),
    "packed: too few rows": lambda m, t: m.pad_packed_sequence(by_hand(m, t, ones(3), ints([2, 2]))),
    "packed: int32 sizes": lambda m, t: m.pad_packed_sequence(by_hand(m, t, ones(3), ints([2, 1], np.int32))),
    "packed: sizes of rank 2": lambda m, t: m.pad_packed_sequence(by_hand(m, t, ones(3), ints([[2, 1]]))),
    "packed: data of rank 0": lambda m, t: m.pad_packed_sequence(by_hand(m, t, ones(()), ints([1]))),
    "packed: index out of range": lambda m, t: m.pad_packed_sequence(
        by_hand(m, t, ones(3), ints([2, 1]), ints([0, 5]))
    ),
    "packed: negative index": lambda m, t: m.pad_packed_sequence(by_hand(m, t, ones(3), ints([2, 1]), ints([-1, 0]))),
    "packed: indices of float": lambda m, t: m.unpack_sequence(by_hand(m, t, ones(3), ints([2, 1]), ints([1.0, 0.0]))),
    "packed: indices of rank 2": lambda m, t: m.unpack_sequence(by_hand(m, t, ones(3), ints([2, 1]), ints([[1, 0]]))),
    "class: index out of range": lambda m, t: m.PackedSequence(t(ones(3)), t(ints([2, 1])), t(ints([1, 5]))),
    "class: negative index": lambda m, t: m.PackedSequence(t(ones(3)), t(ints([2, 1])), t(ints([1, -1]))),
    "class: indices of int32": lambda m, t: m.PackedSequence(t(ones(3)), t(ints([2, 1])), t(ints([1, 0], np.int32))),
    "class: indices of float": lambda m, t: m.PackedSequence(t(ones(3)), t(ints([2, 1])), t(ints([1.0, 0.0]))),
    "class: indices of rank 2": lambda m, t: m.PackedSequence(t(ones(3)), t(ints([2, 1])), t(ints([[1, 0]]))),
    "class: an unknown device": lambda m, t: packed(m, t).to("foo"),
    "class: an unknown field": lambda m, t: packed(m, t)._replace(x=1),
    "class: a field of too many": lambda m, t: packed(m, t)[4],
    "class: assignment": lambda m, t: setattr(packed(m, t), "data", 1),
    **({} if torch.cuda.is_available() else {"class: pinning": lambda m, t: packed(m, t).pin_memory()}),
    "unpad: too few lengths": lambda m, t: m.unpad_sequence(t(ones((3, 2))), t(ints([1]))),
    "unpad: too many lengths": lambda m, t: m.unpad_sequence(t(ones((3, 2))), t(ints([1, 2, 3]))),
    "unpad: rank 1": lambda m, t: m.unpad_sequence(t(ones(3)), t(ints([1]))),
    "unpad: rank 1, batch first": lambda m, t: m.unpad_sequence(t(ones(3)), t(ints([1])), batch_first=True),
    "unpad: one length": lambda m, t: m.unpad_sequence(t(ones((3, 1))), t(ints(1))),
}
# What newer releases raise. PyTorch 2.9 returns the shorter of lengths and sequences, and 2.5 has
# another error.
RAISED_BY_NEWER: dict[str, type[Exception]] = {
    "unpad: too few lengths": ValueError,
    "unpad: too many lengths": ValueError,
    "padded: a length too large": ValueError,
}


def packed(module: Any, convert: Callable[[Any], Any]) -> Any:
    return module.pack_sequence(convert([np.arange(3), np.arange(2)]))


def by_hand(module: Any, convert: Callable[[Any], Any], data: Any, sizes: Any, unsorted: Any = None) -> Any:
    return module.PackedSequence(convert(data), convert(sizes), None, None if unsorted is None else convert(unsorted))


@pytest.mark.parametrize("case", BOTH_REFUSE)
def test_what_pytorch_refuses_is_refused_with_the_same_exception(case: str) -> None:
    call = BOTH_REFUSE[case]
    did, mine = outcome(lambda: call(ds, lambda tree: tree))
    does, wanted = outcome(lambda: call(rnn, in_torch))
    if case in RAISED_BY_NEWER and (does == "returned" or wanted is RuntimeError):
        does, wanted = "raised", RAISED_BY_NEWER[case]
    assert does == "raised", wanted
    # Where PyTorch stumbles over an attribute that its argument lacks, ours says that the type is
    # wrong.
    assert (did, mine) == ("raised", TypeError if wanted is AttributeError and "assignment" not in case else wanted)


BOTH_ALLOW: dict[str, Callable[[Any, Any], Any]] = {
    "an array for a list": lambda m, t: m.pad_sequence(t(ones((2, 3)))),
    "pack: an array for a list": lambda m, t: m.pack_sequence(t(ones((2, 3)))),
    "no features": lambda m, t: m.pad_sequence(t([ones((3, 0)), ones((2, 0))])),
    "no elements": lambda m, t: m.pad_sequence(t([ones(0), ones(0)])),
    "a tuple": lambda m, t: m.pad_sequence(tuple(t([ones(2), ones(3)]))),
    "a generator": lambda m, t: m.pad_sequence(item for item in t([ones(2), ones(3)])),
    "a padding value that is a tensor": lambda m, t: m.pad_sequence(t([ones(2), ones(3)]), padding_value=t(ints(2.0))),
    "lengths of float": lambda m, t: m.pack_padded_sequence(t(ones((3, 2))), [3.7, 2.2]),
    "lengths of bool": lambda m, t: m.pack_padded_sequence(t(ones((3, 2))), [True, True]),
    "lengths beyond the input": lambda m, t: m.pack_padded_sequence(t(ones((3, 2))), [9, 1]),
    "lengths in a range": lambda m, t: m.pack_padded_sequence(t(ones((3, 2))), range(3, 1, -1)),
    "lengths that are tensors": lambda m, t: m.pack_padded_sequence(t(ones((3, 2))), t([ints(3), ints(2)])),
    "fewer lengths than sequences": lambda m, t: m.pack_padded_sequence(t(ones((3, 2))), [3], enforce_sorted=False),
    "total_length of NumPy": lambda m, t: m.pad_packed_sequence(packed(m, t), total_length=np.int64(4)),
    "total_length that is a tensor": lambda m, t: m.pad_packed_sequence(packed(m, t), total_length=t(ints(4))),
    "more rows than sizes tell": lambda m, t: m.pad_packed_sequence(by_hand(m, t, np.arange(5), ints([2, 2]))),
    "a step that nobody reaches": lambda m, t: m.pad_packed_sequence(by_hand(m, t, np.arange(2), ints([2, 0]))),
    "indices for one of two": lambda m, t: m.pad_packed_sequence(by_hand(m, t, np.arange(3), ints([2, 1]), ints([1]))),
    "an index twice": lambda m, t: m.pad_packed_sequence(
        by_hand(m, t, np.arange(3), ints([2, 1]), ints([1, 1, 0])), True
    ),
    "indices of int32": lambda m, t: m.unpack_sequence(by_hand(m, t, ones(3), ints([2, 1]), ints([1, 0], np.int32))),
    "a pair": lambda m, t: m.PackedSequence((t(np.arange(3)), t(ints([2, 1])))),
    "a pair and indices": lambda m, t: m.PackedSequence(
        t([np.arange(3), ints([2, 1])]), sorted_indices=t(ints([1, 0]))
    ),
    "indices alone": lambda m, t: m.PackedSequence(t(np.arange(3)), t(ints([2, 1])), None, t(ints([1, 0]))),
    "to nothing": lambda m, t: packed(m, t).to(),
    "to cpu": lambda m, t: packed(m, t).to("cpu"),
    "to another": lambda m, t: packed(m, t).to(t(ones(1, np.float32))),
    "cpu": lambda m, t: packed(m, t).cpu(),
    "double": lambda m, t: packed(m, t).double(),
    "float": lambda m, t: packed(m, t).float(),
    "half": lambda m, t: packed(m, t).half(),
    "long": lambda m, t: packed(m, t).double().long(),
    "int": lambda m, t: packed(m, t).int(),
    "short": lambda m, t: packed(m, t).short(),
    "char": lambda m, t: packed(m, t).char(),
    "byte": lambda m, t: packed(m, t).byte(),
    "_replace": lambda m, t: packed(m, t)._replace(data=t(ones(5))),
    "_make": lambda m, t: m.PackedSequence._make([t(ones(3)), t(ints([2, 1])), None, None]),
    "a slice": lambda m, t: packed(m, t)[:3],
    "unpad: NaN": lambda m, t: m.unpad_sequence(t(ones((3, 2))), t(ints([np.nan, 2.0]))),
    "unpad: bool": lambda m, t: m.unpad_sequence(t(ones((3, 2))), t(ints([True, False]))),
    "unpad: no steps": lambda m, t: m.unpad_sequence(t(ones((0, 2))), t(ints([1, 2]))),
}


@pytest.mark.parametrize("case", BOTH_ALLOW)
def test_what_pytorch_allows_returns_the_same(case: str) -> None:
    call = BOTH_ALLOW[case]
    assert_same(call(ds, lambda tree: tree), call(rnn, in_torch))


def test_a_torch_tensor_among_arrays_is_refused_by_name() -> None:
    for call in (
        lambda: ds.pack_padded_sequence(np.ones((2, 2)), torch.tensor([2, 2])),
        lambda: ds.PackedSequence(torch.ones(2), torch.tensor([2])),
    ):
        with pytest.raises(TypeError, match=r"torch\.Tensor; PyTorch tensors are not understood here"):
            call()
