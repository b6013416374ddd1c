from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import numpy as np
import pytest

import disposescope as ds

made: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    made.clear()
    before = ds.statistics().live
    ds.reset_statistics()
    yield
    made.clear()
    if ds.statistics().live != before:
        gc.collect()
    assert ds.statistics().live == before


def padded(samples: list[Any], batch_first: bool = False) -> dict[str, Any]:
    """Pad them."""
    tensors = [ds.asarray(sample) for sample in samples]
    made.extend(tensors)
    if len(samples) > 3:
        raise ValueError("too many")
    return {"padded": ds.pad_sequence(tensors, batch_first), "count": len(samples), "same": samples[0]}


@ds.ScopedCollate
def decorated(samples: list[Any]) -> ds.Tensor:
    return ds.pad_sequence([ds.asarray(sample) for sample in samples])


class Method:
    def collate(self, samples: list[Any]) -> ds.Tensor:
        return ds.pad_sequence([ds.asarray(sample) for sample in samples])


SAMPLES = [np.arange(3), np.arange(2)]


def test_the_batch_is_left_and_every_temporary_is_disposed() -> None:
    with ds.dispose_scope() as scope:
        batch = ds.ScopedCollate(padded)(SAMPLES)
        assert scope.live == (batch["padded"],)
        assert all(map(ds.is_disposed, made))
        assert len(made) == 2
    assert ds.is_disposed(batch["padded"])


def test_without_a_scope_the_batch_is_unowned() -> None:
    batch = ds.ScopedCollate(padded)(SAMPLES, batch_first=True)
    assert ds.owner_of(batch["padded"]) is None
    assert batch["padded"].tolist() == [[0, 1, 2], [0, 1, 0]]
    assert ds.statistics().live == 1


def test_what_the_samples_were_before_stays_as_it_is() -> None:
    with ds.dispose_scope() as outer:
        sample = ds.arange(3)
        with ds.dispose_scope() as scope:
            batch = ds.ScopedCollate(padded)([sample])
            assert batch["same"] is sample
            assert sample in outer
            assert batch["padded"] in scope
        assert not ds.is_disposed(sample)


def test_nothing_is_left_when_the_function_raises() -> None:
    with ds.dispose_scope() as scope:
        with pytest.raises(ValueError, match="too many"):
            ds.ScopedCollate(padded)(SAMPLES * 2)
        assert len(made) == 4
        assert all(map(ds.is_disposed, made))
        assert len(scope) == 0
        assert ds.current_scope() is scope


def test_nothing_is_left_when_a_tensor_hides_in_the_batch() -> None:
    class Opaque:
        def __init__(self, tensor: ds.Tensor) -> None:
            self.tensor = tensor

    with ds.dispose_scope() as scope:
        with pytest.raises(ds.UnknownKindError, match="Opaque"):
            ds.ScopedCollate(lambda samples: Opaque(ds.asarray(samples[0])))(SAMPLES)
        assert len(scope) == 0


def test_it_looks_like_the_function_it_wraps() -> None:
    collate = ds.ScopedCollate(padded)
    assert collate.__name__ == "padded"
    assert collate.__doc__ == "Pad them."
    assert collate.__wrapped__ is padded
    assert repr(collate) == "ScopedCollate(padded)"
    assert repr(ds.ScopedCollate(ds.pack_collate())).startswith("ScopedCollate(pack_collate(")


def test_wrapping_twice_is_wrapping_once() -> None:
    assert ds.ScopedCollate(ds.ScopedCollate(padded)).function is padded


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a collate function"):
        ds.ScopedCollate(3)


@pytest.mark.parametrize("collate", [ds.ScopedCollate(padded), decorated, ds.ScopedCollate(Method().collate)])
def test_it_survives_pickling_and_copying(collate: Any) -> None:
    for again in (pickle.loads(pickle.dumps(collate)), copy.copy(collate), copy.deepcopy(collate)):
        assert type(again) is ds.ScopedCollate
        assert again(SAMPLES) is not None
    assert pickle.loads(pickle.dumps(decorated)) is decorated


def test_a_function_that_cannot_be_pickled_says_so() -> None:
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(ds.ScopedCollate(lambda samples: samples))
