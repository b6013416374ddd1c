"""Comparing what Tensors give with what NumPy gives for arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import disposescope as ds


def outcome(compute: Callable[[], Any]) -> Any:
    """What a computation gives, or the type of what it raises."""
    with np.errstate(all="ignore"):
        try:
            return compute()
        except Exception as error:
            return type(error)


def assert_same(got: Any, expected: Any) -> None:
    """The same values of the same dtype, as Tensors where NumPy gives arrays."""
    if isinstance(expected, (np.ndarray, np.generic)):
        assert type(got) is ds.Tensor
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(got.numpy(), expected)
    elif isinstance(expected, (tuple, list)):
        assert type(got) is type(expected)
        for one, other in zip(got, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, dict):
        assert got.keys() == expected.keys()
        for key in expected:
            assert_same(got[key], expected[key])
    else:
        assert got is expected or got == expected
