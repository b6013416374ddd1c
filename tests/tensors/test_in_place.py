"""Augmented assignments keep the tensor, its memory, shape and dtype."""

import operator

import numpy as np
import pytest

import disposescope as ds


def test_an_augmented_assignment_returns_the_tensor_itself_and_makes_no_new_one():
    t = ds.arange(4.0)
    ds.reset_statistics()
    same = t
    same += 1
    same *= ds.asarray(t)
    assert same is t
    assert ds.statistics().created_unscoped == 0
    assert t.tolist() == [1.0, 4.0, 9.0, 16.0]


def test_what_does_not_fit_into_the_dtype_or_the_shape_is_refused_and_changes_nothing():
    t = ds.arange(2)
    with pytest.raises(np._core._exceptions._UFuncOutputCastingError):
        t += 0.5
    with pytest.raises(ValueError, match="broadcast"):
        t += np.ones((3, 2), dtype=int)
    assert t.tolist() == [0, 1]


def test_a_tensor_of_rank_0_is_changed_in_place():
    total = ds.tensor(1.0)
    alias = total.numpy()
    total += 2
    assert (float(total), float(alias)) == (3.0, 3.0)


def test_a_sequence_that_is_no_plain_type_is_added_as_an_array():
    t = ds.zeros(3)
    t += range(3)
    assert t.tolist() == [0.0, 1.0, 2.0]


def test_a_class_without_ufuncs_is_refused():
    class Stranger:
        __array_ufunc__ = None

    with pytest.raises(TypeError):
        operator.iadd(ds.ones(2), Stranger())
