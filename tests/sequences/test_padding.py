from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import disposescope as ds
from disposescope.sequences.array_adapter import ARRAYS


def padding_of(value: Any, dtype: Any, what: str, *, as_float: bool = False) -> Any:
    return ARRAYS.full((), np.empty(0, dtype), value, what, as_float)[()]


@pytest.mark.parametrize(
    ("value", "dtype", "wanted"),
    [
        (1.9, "int64", 1),
        (-1.9, "int8", -1),
        (-1, "uint8", 255),
        (float("nan"), "bool", True),
        (0.0, "bool", False),
        (2, "float16", 2.0),
        (1 + 2j, "complex64", 1 + 2j),
        (3 + 0j, "int32", 3),
        (2**63, "uint64", 2**63),
        (np.float32(1.5), "float64", 1.5),
        (np.array(2), "int8", 2),
        (True, "int8", 1),
        (float("inf"), "float32", math.inf),
    ],
)
def test_a_value_takes_the_dtype(value: Any, dtype: str, wanted: Any) -> None:
    scalar = padding_of(value, np.dtype(dtype), "f")
    assert scalar.dtype == dtype
    assert scalar == wanted


@pytest.mark.parametrize(
    ("value", "dtype", "error"),
    [
        (300, "uint8", RuntimeError),
        (-256, "uint8", RuntimeError),
        (-1.0, "uint8", RuntimeError),
        (float("nan"), "int64", RuntimeError),
        (1e6, "float16", RuntimeError),
        (1j, "float64", RuntimeError),
        (2**64, "uint64", OverflowError),
        ("a", "int8", TypeError),
        (None, "int8", TypeError),
        (np.array([1]), "int8", TypeError),
    ],
)
def test_a_value_that_does_not_fit_is_refused(value: Any, dtype: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^f: padding_value"):
        padding_of(value, np.dtype(dtype), "f")


def test_a_value_taken_for_a_float_first() -> None:
    assert padding_of(2**53 + 1, np.dtype("int64"), "f", as_float=True) == 2**53
    with pytest.raises(RuntimeError):
        padding_of(-1, np.dtype("uint8"), "f", as_float=True)
    with pytest.raises(TypeError, match="float"):
        padding_of(1j, np.dtype("complex64"), "f", as_float=True)


def test_a_tensor_is_a_value_too() -> None:
    with ds.dispose_scope():
        value = ds.asarray(2.5)
        assert padding_of(value, np.dtype("float32"), "f") == 2.5
    with pytest.raises(ds.DisposedError):
        padding_of(value, np.dtype("float32"), "f")
