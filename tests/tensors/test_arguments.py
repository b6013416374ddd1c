"""Tensors on the way into NumPy's functions, and arrays on the way out."""

import collections

import numpy as np

import disposescope as ds
from disposescope.tensors.tensor.tensor import bare, defers, dressed, overrides

Pair = collections.namedtuple("Pair", "left right")


def test_bare_replaces_tensors_in_nested_containers_and_leaves_the_rest():
    t = ds.ones(2)
    inside = bare({"a": [t, (t, 1)], "b": None})
    assert type(inside["a"][0]) is np.ndarray
    assert inside["a"][0] is inside["a"][1][0]
    text, numbers = "text", range(3)
    assert bare(text) is text
    assert bare(numbers) is numbers


def test_bare_copies_other_sequences_only_where_they_hold_a_tensor():
    queue = collections.deque([1, 2])
    assert bare(queue) is queue
    assert type(bare(collections.deque([ds.ones(1)]))) is list
    assert type(bare(Pair(ds.ones(1), 2))) is tuple


def test_bare_returns_which_array_stands_for_which_tensor():
    t, given = ds.ones(2), {}
    array = bare([t], given)[0]
    assert given == {id(array): t}


def test_dressed_makes_tensors_of_arrays_and_scalars_and_keeps_containers():
    array = np.ones(1)
    t = ds.ones(1)
    result = dressed(({"a": array}, [np.float32(1)], Pair(array, "text"), 3, array), {id(array): t})
    assert result[0]["a"] is t
    assert type(result[1][0]) is ds.Tensor
    assert type(result[2]) is Pair
    assert (result[2].left, result[2].right, result[3]) == (t, "text", 3)
    masked = np.ma.array([1])
    assert dressed(masked, {}) is masked


def test_who_has_the_say():
    class Refuses:
        __array_ufunc__ = None

    class Old:
        __array_priority__ = 20

    class Odd:
        __array_priority__ = "high"

    assert [defers(other) for other in (Refuses(), Old(), Odd(), object(), np.ma.array([1]))] == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert [overrides(cls) for cls in (Refuses, Old, np.ndarray, ds.Tensor, list)] == [True, False, False, False, False]
