from __future__ import annotations

import pickle
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest

import disposescope as ds


class Pair(NamedTuple):
    tokens: Any
    label: Any


Old = namedtuple("Old", "tokens label")


@dataclass(frozen=True, slots=True)
class Frozen:
    tokens: Any
    label: Any

    def __post_init__(self) -> None:
        assert isinstance(self.label, int), "checks a sample, and is not asked of a batch"


@dataclass
class Plain:
    tokens: Any
    label: Any


@attrs.frozen
class Attrs:
    tokens: Any
    label: Any


def varied(*lengths: int) -> list[dict[str, Any]]:
    return [{"tokens": np.arange(length), "label": length} for length in lengths]


def test_what_varies_is_packed_and_the_rest_is_stacked() -> None:
    samples = [
        {
            "tokens": np.arange(length, dtype=np.uint8),
            "features": np.full((2, 3), length, np.float32),
            "rank 0": np.array(length),
            "label": length,
            "weight": length / 2,
            "flag": length > 2,
            "of numpy": np.float32(length),
            "text": "t" * length,
            "raw": b"r" * length,
            "nothing": None,
            "mine": ds.arange(length) + 0.5,
        }
        for length in (2, 4, 3)
    ]
    batch = ds.pack_collate()(samples)
    assert list(batch) == list(samples[0])
    tokens = batch["tokens"]
    assert type(tokens) is ds.PackedSequence
    assert tokens.data.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3]
    assert tokens.data.dtype == np.uint8
    assert tokens.sorted_indices.tolist() == [1, 2, 0]
    assert batch["features"].shape == (3, 2, 3)
    assert batch["features"].dtype == np.float32
    assert batch["rank 0"].tolist() == batch["label"].tolist() == [2, 4, 3]
    assert batch["weight"].tolist() == [1.0, 2.0, 1.5]
    assert batch["flag"].tolist() == [False, True, True]
    assert (batch["of numpy"].dtype, batch["weight"].dtype) == (np.float32, np.float64)
    assert batch["text"] == ["tt", "tttt", "ttt"]
    assert batch["raw"] == [b"rr", b"rrrr", b"rrr"]
    assert batch["nothing"] == [None] * 3
    assert ds.unpack_sequence(batch["mine"])[1].tolist() == [0.5, 1.5, 2.5, 3.5]


@pytest.mark.parametrize("make", [Pair, Old, Plain, Attrs, Frozen])
def test_the_batch_is_of_the_class_of_a_sample(make: Any) -> None:
    samples = [make(np.arange(length), length) for length in (3, 1)]
    batch = ds.pack_collate()(samples)
    assert type(batch) is make
    assert batch.tokens.data.tolist() == [0, 0, 1, 2]
    assert batch.label.tolist() == [3, 1]
    assert samples[0].label == 3


def test_containers_keep_their_type_and_nest() -> None:
    for make in (tuple, list):
        batch = ds.pack_collate()([make((np.arange(length), make((length,)))) for length in (3, 1)])
        assert type(batch) is type(batch[1]) is make
        assert batch[1][0].tolist() == [3, 1]
    ordered = ds.pack_collate()([OrderedDict(sample) for sample in varied(1, 2)])
    assert type(ordered) is OrderedDict
    counted = ds.pack_collate()([defaultdict(int, sample) for sample in varied(1, 2)])
    assert type(counted) is defaultdict
    assert counted["more"] == 0
    assert type(ds.pack_collate()([MappingProxyType(sample) for sample in varied(1, 2)])) is dict
    assert type(ds.pack_collate()([np.arange(2), np.arange(3)])) is ds.PackedSequence
    assert ds.pack_collate()([1, 2]).tolist() == [1, 2]
    assert ds.pack_collate()(sample for sample in ("a", "b")) == ["a", "b"]


def test_a_field_that_was_seen_to_vary_stays_packed() -> None:
    collate = ds.pack_collate()
    assert type(collate(varied(2, 2))["tokens"]) is ds.Tensor
    assert type(collate(varied(2, 3))["tokens"]) is ds.PackedSequence
    assert type(collate(varied(2, 2))["tokens"]) is ds.PackedSequence
    assert type(collate(varied(2))["tokens"]) is ds.PackedSequence
    # A worker process gets what is known when it starts.
    assert type(pickle.loads(pickle.dumps(collate))(varied(2))["tokens"]) is ds.PackedSequence


@pytest.mark.parametrize("lengths", [(2, 3), (2, 2), (2,)])
def test_named_fields_are_packed_and_no_others_whatever_the_lengths(lengths: tuple[int, ...]) -> None:
    samples = [{"a": np.arange(length), "b": np.zeros(2), "in": (np.arange(length),)} for length in lengths]
    batch = ds.pack_collate(pack=["a", "in.0"])(samples)
    assert type(batch["a"]) is type(batch["in"][0]) is ds.PackedSequence
    assert batch["b"].shape == (len(lengths), 2)
    assert type(ds.pack_collate(pack=[1])([(1, np.arange(length)) for length in lengths])[1]) is ds.PackedSequence
    assert type(ds.pack_collate(pack=[""])([np.arange(length) for length in lengths])) is ds.PackedSequence
    everything = ds.pack_collate(pack="all", stack=["b"])(samples)
    assert type(everything["a"]) is type(everything["in"][0]) is ds.PackedSequence
    assert everything["b"].shape == (len(lengths), 2)


def test_dtypes_are_promoted_in_packed_fields_as_in_stacked_ones() -> None:
    samples = [(np.arange(2), np.zeros(2, np.int32)), (np.array([0.5]), np.zeros(2, np.float32))]
    packed, stacked = ds.pack_collate()(samples)
    assert packed.data.tolist() == [0.0, 0.5, 1.0]
    assert stacked.dtype == np.float64


def test_enforce_sorted_refuses_and_leaves_no_indices() -> None:
    batch = ds.pack_collate(enforce_sorted=True)(varied(3, 2))
    assert batch["tokens"].sorted_indices is None
    with pytest.raises(RuntimeError, match=r"pack_collate: field 'tokens': .*sorted by length"):
        ds.pack_collate(enforce_sorted=True)(varied(2, 3))


def test_only_the_batch_is_left() -> None:
    with ds.dispose_scope() as scope:
        temporary = []

        def lazily() -> Any:
            for length in (2, 3):
                temporary.append(ds.arange(length))
                yield {"tokens": temporary[-1], "label": length}

        batch = ds.pack_collate()(lazily())
        assert set(map(id, scope.live)) == {id(batch["tokens"]), id(batch["label"])}
        assert all(map(ds.is_disposed, temporary))
        with pytest.raises(ValueError, match="sample 1"):
            ds.pack_collate()([{"a": 1, "b": np.zeros((2, 3))}, {"a": 1, "b": np.zeros((2, 4))}])
        assert len(scope) == 2


def test_the_batch_shares_no_memory_with_the_samples() -> None:
    samples = [np.arange(3), np.arange(3)]
    stacked = ds.pack_collate()(samples[:1])
    samples[0][0] = 9
    assert stacked.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "no samples"),
        ([{"a": 1}, {"b": 1}], "sample 1 has the fields"),
        ([{"x": {"a": 1}}, {"x": {}}], "field 'x' of sample 1 has the fields"),
        ([(1, 2), (1,)], "sample 1 has the fields"),
        ([[1, 2], [1]], "make an array of one that is a sequence"),
        (
            [{"a": np.zeros((2, 3))}, {"a": np.zeros((2, 3))}, {"a": np.zeros((2, 4))}],
            "field 'a' of sample 2 has shape",
        ),
        ([(np.zeros(2),), (np.zeros((2, 1)),)], "field '0' of sample 1 has shape"),
        ([np.zeros(2), np.zeros(0)], r"sample 1 has shape \(0,\), and an empty sequence"),
        ([np.zeros(2), np.array(1.0)], "sample 1 has shape"),
    ],
)
def test_samples_that_do_not_go_together_are_refused_by_field_and_sample(samples: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ds.pack_collate()(samples)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([1, "a"], "sample 1 is a str, where sample 0 has a int"),
        ([{"a": np.zeros(1)}, {"a": 1}], "field 'a' of sample 1 is a int"),
        ([{"a": "t"}, {"a": 1}], "field 'a' of sample 1 is a int"),
        ([(1,), [1]], "sample 1 is a list"),
        ([{1}], "sample 0 must be a Tensor or a NumPy array, not a set; samples are"),
        ([{"a": object()}], "field 'a' of sample 0 must be"),
        ([np.array(["a"])], "dtype"),
        ([10**30, 1], "object"),
    ],
)
def test_fields_that_are_not_understood_are_refused_by_name(samples: list[Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ds.pack_collate()(samples)


def test_a_packed_sequence_in_a_sample_is_refused() -> None:
    with pytest.raises(TypeError, match="PackedSequence"):
        ds.pack_collate()([{"a": ds.pack_sequence([np.arange(2)])}])


def test_a_disposed_tensor_in_a_sample_raises() -> None:
    tensor = ds.zeros(2)
    tensor.dispose()
    with pytest.raises(ds.DisposedError):
        ds.pack_collate()([tensor])


def test_names_that_lead_nowhere_or_contradict_are_refused() -> None:
    with pytest.raises(ValueError, match=r"field 'tokenz' is named .* there are: field 'tokens'"):
        ds.pack_collate(pack=["tokenz"])(varied(2, 2))
    with pytest.raises(ValueError, match="'label' is named and is no field of arrays"):
        ds.pack_collate(stack=["label"])(varied(2, 2))
    with pytest.raises(ValueError, match="name it in pack="):
        ds.pack_collate(pack=[])(varied(2, 3))
    with pytest.raises(ValueError, match="name it in pack="):
        ds.pack_collate(stack=["tokens"])(varied(2, 3))
    with pytest.raises(ValueError, match="both pack and stack"):
        ds.pack_collate(pack=["a"], stack=["a"])
    with pytest.raises(ValueError, match="'varying', 'all' or a collection"):
        ds.pack_collate(pack="tokens")
    for names in ([None], [1.5], [True], 3):
        with pytest.raises(TypeError):
            ds.pack_collate(pack=names)
    with pytest.raises(TypeError, match="enforce_sorted"):
        ds.pack_collate(enforce_sorted=1)


def test_repr_shows_the_options() -> None:
    assert repr(ds.pack_collate(pack=["b", "a.0"])) == "pack_collate(pack=['a.0', 'b'], stack=[], enforce_sorted=False)"
