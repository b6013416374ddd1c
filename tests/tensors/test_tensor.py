"""Elements, numbers, text and copies of a Tensor."""

import copy
import gc
import io
import math
import operator
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import disposescope as ds

ARRAY = np.arange(24).reshape(4, 3, 2)


@given(st.data())
def test_an_index_selects_what_it_selects_from_an_array(data):
    key = data.draw(
        st.one_of(
            hnp.basic_indices(ARRAY.shape, allow_newaxis=True),
            hnp.integer_array_indices(ARRAY.shape),
            hnp.arrays(bool, ARRAY.shape),
            hnp.arrays(bool, ARRAY.shape[0]),
        )
    )
    expected = ARRAY[key]
    wrapped = wrap(key) if data.draw(st.booleans()) else key
    got = ds.tensor(ARRAY)[wrapped]
    assert type(got) is ds.Tensor
    assert (got.shape, got.dtype) == (np.shape(expected), expected.dtype)
    np.testing.assert_array_equal(got.numpy(), expected)


@given(st.data())
def test_an_assignment_changes_what_it_changes_in_an_array(data):
    key = data.draw(st.one_of(hnp.basic_indices(ARRAY.shape), hnp.integer_array_indices(ARRAY.shape)))
    expected, t = ARRAY.copy(), ds.tensor(ARRAY)
    value = data.draw(st.one_of(st.integers(-5, 5), hnp.arrays("i4", np.shape(ARRAY[key]))))
    expected[key] = value
    t[wrap(key)] = ds.asarray(value)
    np.testing.assert_array_equal(t.numpy(), expected)


def wrap(key):
    if isinstance(key, np.ndarray):
        return ds.tensor(key)
    return tuple(wrap(part) for part in key) if isinstance(key, tuple) else key


@pytest.mark.parametrize("key", [5, (0, 0, 0, 0), "x", 1.5, (0, None, 9)], ids=repr)
def test_a_bad_index_raises_what_it_raises_for_an_array(key):
    with pytest.raises(IndexError) as expected:
        ARRAY[key]
    with pytest.raises(IndexError) as caught:
        ds.tensor(ARRAY)[key]
    assert str(caught.value) == str(expected.value)


def test_a_single_element_is_a_copy_of_rank_0_that_the_scope_owns():
    t = ds.tensor([1.0, 2.0])
    with ds.dispose_scope() as scope:
        first = t[0]
        assert first in scope
        first += 5
    assert t.tolist() == [1.0, 2.0]
    assert first.disposed


def test_a_tensor_of_rank_0_is_an_index():
    t = ds.tensor([10, 20, 30])
    assert ["a", "b", "c"][t.argmax()] == "c"
    assert int(t[t.argmin()]) == 10
    assert list(range(5))[ds.tensor(1) : ds.tensor(3)] == [1, 2]
    with pytest.raises(TypeError):
        operator.index(ds.tensor(1.0))


def test_objects_come_out_as_themselves():
    things = [{"a": 1}, np.ones(2), None]
    t = ds.empty(3, dtype=object)
    for index, thing in enumerate(things):
        t[index] = thing
    assert [t[index] is thing for index, thing in enumerate(things)] == [True] * 3
    assert [one is other for one, other in zip(t, things, strict=True)] == [True] * 3
    inner = ds.ones(2)
    t[0] = inner
    assert t[0] is inner
    assert type(t[:2]) is ds.Tensor
    assert type(t[...]) is ds.Tensor
    assert type(t[[0, 1]]) is ds.Tensor
    assert t[ds.tensor([False, True, False])][0] is things[1]
    boxed = ds.empty((), dtype=object)
    boxed[()] = things[0]
    assert boxed[()] is things[0]


def test_a_record_is_a_view():
    t = ds.zeros(2, dtype=[("x", "i4"), ("y", "f8")])
    t[0]["x"] = 5
    record = t[1]
    record["y"] = 2.5
    assert type(record) is ds.Tensor
    assert t.tolist() == [(5, 0.0), (0, 2.5)]
    assert t["x"].tolist() == [5, 0]
    assert t[["x"]].dtype.names == ("x",)


def test_iteration_yields_tensors():
    rows = list(ds.tensor([[1, 2], [3, 4]]))
    assert [row.tolist() for row in rows] == [[1, 2], [3, 4]]
    assert [type(number) for number in ds.arange(2)] == [ds.Tensor] * 2
    assert [int(number) for number in reversed(ds.arange(3))] == [2, 1, 0]
    first, second = ds.tensor([7, 8])
    assert (int(first), int(second)) == (7, 8)
    with pytest.raises(TypeError, match="rank 0"):
        iter(ds.tensor(1))


def test_iteration_ends_when_the_tensor_is_disposed():
    t = ds.arange(3)
    iterator = iter(t)
    next(iterator)
    t.dispose()
    with pytest.raises(ds.DisposedError):
        next(iterator)


def test_membership_is_by_value():
    t = ds.tensor([1, 2])
    assert 2 in t
    assert ds.tensor(2) in t
    assert 3 not in t
    assert "x" not in t


def test_len_and_bool_follow_numpy():
    assert len(ds.ones((3, 2))) == 3
    with pytest.raises(TypeError, match="unsized"):
        len(ds.tensor(1))
    assert not ds.tensor(0)
    assert ds.tensor([[2]])
    with pytest.raises(ValueError, match="ambiguous"):
        bool(ds.ones(2))
    with pytest.raises((ValueError, DeprecationWarning), match="empty"):  # as this NumPy says it
        bool(ds.ones(0))


def test_numbers_come_out_of_rank_0():
    t = ds.tensor(2.5)
    assert (int(t), float(t), complex(t), round(t), float(round(ds.tensor(2.345), 2))) == (2, 2.5, 2.5 + 0j, 2, 2.35)
    assert (math.floor(t), math.ceil(t), math.trunc(t)) == (2, 3, 2)
    assert round(ds.tensor([1.26, 2.0]), 1).tolist() == [1.3, 2.0]
    assert round(ds.tensor([1.6, 2.0])).tolist() == [2.0, 2.0]
    with pytest.raises(TypeError):
        float(ds.ones(2))


def test_text_is_that_of_an_array():
    t = ds.tensor([[1.5, 2.0]], name="w")
    assert str(t) == f"{t}" == "[[1.5 2. ]]"
    assert repr(t) == "Tensor([[1.5, 2. ]], name='w')"
    assert repr(ds.tensor([1, 2], dtype="f4")) == "Tensor([1., 2.], dtype=float32)"
    assert repr(ds.tensor(3)) == "Tensor(3)"
    assert repr(ds.ones((2, 2))) == "Tensor([[1., 1.],\n        [1., 1.]])"
    assert repr(ds.empty(0)) == "Tensor([], dtype=float64)"
    assert f"{ds.tensor(2.345):.1f} {ds.tensor(3):03d}" == "2.3 003"
    assert format(ds.zeros((), dtype="i4,f4")) == str(np.zeros((), dtype="i4,f4"))
    with pytest.raises(TypeError, match="rank 2"):
        f"{t:.1f}"


VALUES = [
    np.arange(6).reshape(2, 3)[:, ::2],
    np.ones(2, dtype=">f4"),
    np.array(["a", "bc"]),
    np.array([b"x"]),
    np.array(["2020-01-01"], dtype="M8[D]"),
    np.zeros(2, dtype=[("x", "i4"), ("y", "f8", (2,))]),
    np.array([1 + 2j, 3]),
    np.array([{"a": 1}, None], dtype=object),
    np.array(5.0),
    np.ones((0, 3)),
    np.asfortranarray(np.ones((2, 3))),
    np.array(["a", "longer than a pointer can be"], dtype=np.dtypes.StringDType()),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(value.dtype))
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_tensor_is_born_where_it_is_unpickled(value, protocol):
    t = ds.tensor(value, name="w")
    data = pickle.dumps(t, protocol)
    with ds.dispose_scope() as scope:
        back = pickle.loads(data)
        assert back in scope
        assert (back.shape, back.name) == (t.shape, "w")
        assert back.dtype == pickle.loads(pickle.dumps(value, protocol)).dtype
        assert repr(back.tolist()) == repr(t.tolist())
        assert not np.shares_memory(back, t)
    assert back.disposed


def test_a_small_view_is_pickled_without_its_storage():
    assert len(pickle.dumps(ds.zeros(100_000)[:10])) < 1000


def test_one_tensor_that_is_pickled_twice_is_one_tensor():
    t = ds.ones(2)
    first, second = pickle.loads(pickle.dumps([t, t]))
    assert first is second


def test_elements_can_be_pickled_out_of_band():
    t = ds.arange(1000.0)
    buffers = []
    data = pickle.dumps(t, 5, buffer_callback=buffers.append)
    assert len(data) < 500
    back = pickle.loads(data, buffers=buffers)
    assert np.shares_memory(back, t)
    assert back.tolist() == t.tolist()


def test_a_pickler_of_the_old_protocols_works_too():
    stream = io.BytesIO()
    pickle.Pickler(stream, 0).dump(ds.ones(2))
    assert pickle.loads(stream.getvalue()).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
def test_a_copy_is_a_tensor_with_memory_of_its_own(make):
    t = ds.tensor([1.0, 2.0], name="w")
    twin = make(t)
    assert type(twin) is ds.Tensor
    assert (twin.tolist(), twin.name) == (t.tolist(), "w")
    assert not np.shares_memory(twin, t)


def test_a_deep_copy_copies_objects_and_keeps_identities():
    inner = [1]
    t = ds.empty(2, dtype=object)
    t[0] = t[1] = inner
    both = copy.deepcopy([t, inner, t])
    assert both[0] is both[2]
    assert both[0][0] is both[1] is both[0][1]
    assert both[1] is not inner


def test_the_class_makes_tensors_as_the_function_does():
    t = ds.Tensor([[1, 2]], "f4", "w")
    assert (t.tolist(), t.dtype, t.name) == ([[1.0, 2.0]], np.float32, "w")


def test_a_tensor_leaves_no_garbage():
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            t = ds.ones(3)
            t = t + t[0] * t.sum()
            np.concatenate([t, t]).numpy()
            pickle.loads(pickle.dumps(t))
            t.dispose()
            with pytest.raises(ds.DisposedError):
                t + 1
        del t
        assert gc.collect() == 0
    finally:
        gc.enable()
