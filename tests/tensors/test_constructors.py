"""Constructors take NumPy's arguments and give Tensors that the scope owns."""

import numpy as np
import pytest

import disposescope as ds

CALLS = {
    "empty": lambda x: x.empty((2, 3), "i4", "F"),
    "zeros": lambda x: x.zeros(3),
    "zeros of a tuple": lambda x: x.zeros((2, 0), dtype="f4"),
    "zeros on the cpu": lambda x: x.zeros(2, device="cpu"),
    "ones": lambda x: x.ones((2, 2), int),
    "ones of no dtype": lambda x: x.ones(2, None),
    "full": lambda x: x.full(2, 7),
    "full of a row": lambda x: x.full((2, 2), [1, 2], "f4", "F"),
    "full by name": lambda x: x.full(shape=(2,), fill_value=1.5),
    "arange": lambda x: x.arange(3),
    "arange from": lambda x: x.arange(1, 3),
    "arange by": lambda x: x.arange(0, 1, 0.25, "f4"),
    "arange by name": lambda x: x.arange(start=1, stop=9, step=3, dtype=float),
    "arange of a dtype": lambda x: x.arange(3, dtype="u1"),
    "asarray": lambda x: x.asarray([[1, 2]], "f4", "F"),
    "asarray of a number": lambda x: x.asarray(3),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_constructor_makes_what_numpy_makes_as_a_tensor(name):
    with ds.dispose_scope() as scope:
        t = CALLS[name](ds)
        expected = CALLS[name](np)
        assert type(t) is ds.Tensor
        assert t in scope
        assert (t.shape, t.dtype, t.flags.f_contiguous) == (expected.shape, expected.dtype, expected.flags.f_contiguous)
        if name != "empty":
            np.testing.assert_array_equal(t.numpy(), expected)
    assert t.disposed


def test_tensor_copies_its_data():
    source = np.array([1.0, 2.0])
    for data in (source, ds.asarray(source)):
        t = ds.tensor(data)
        t[0] = 9
        assert source.tolist() == [1.0, 2.0]


def test_tensor_takes_nested_sequences_with_tensors():
    t = ds.tensor([[ds.tensor(1), 2], (3, ds.tensor(4.0))], dtype="f4")
    assert (t.tolist(), t.dtype) == ([[1.0, 2.0], [3.0, 4.0]], np.float32)
    assert ds.tensor([ds.ones(2), ds.zeros(2)]).shape == (2, 2)
    assert ds.tensor(range(3)).tolist() == [0, 1, 2]
    assert ds.tensor([(1, 2.0)], dtype=[("x", int), ("y", float)])["y"].tolist() == [2.0]


def test_tensor_takes_a_tensor_of_torch():
    torch = pytest.importorskip("torch")
    source = torch.tensor([1, 2])
    t = ds.tensor(source)
    t[0] = 5
    assert source.tolist() == [1, 2]


@pytest.mark.parametrize("make", [ds.empty, ds.zeros, ds.ones], ids=["empty", "zeros", "ones"])
def test_every_constructor_takes_a_name(make):
    assert make(1, name="n").name == "n"
    assert ds.full(1, 2, name="n").name == ds.arange(1, name="n").name == ds.tensor(1, name="n").name == "n"
    assert make(1).name is None


@pytest.mark.parametrize("bad", [lambda: ds.zeros(-1), lambda: ds.tensor([[1], [1, 2]]), lambda: ds.arange(0, 1, 0.0)])
def test_bad_values_raise_what_numpy_raises(bad):
    with pytest.raises((ValueError, ZeroDivisionError)):
        bad()


@pytest.mark.parametrize(
    "bad",
    [
        lambda: ds.zeros("x"),
        lambda: ds.ones(2, dtype="no such dtype"),
        lambda: ds.arange(),
        lambda: ds.zeros(2, like=np.ones(1)),
        lambda: ds.arange(2, like=np.ones(1)),
        lambda: ds.Tensor(),
    ],
)
def test_bad_types_raise_what_numpy_raises(bad):
    with pytest.raises(TypeError):
        bad()


@pytest.mark.parametrize("make", [ds.zeros, ds.ones, ds.empty, ds.arange, ds.asarray])
def test_a_device_that_is_not_there_is_refused(make):
    assert make(2, device="cpu:0").device == "cpu:0"
    with pytest.raises(ValueError, match="no device 'cuda:1'"):
        make(2, device="cuda:1")


def test_a_refused_call_leaves_nothing_behind():
    with ds.dispose_scope() as scope:
        with pytest.raises(ValueError, match="inhomogeneous"):
            ds.tensor([[1], [1, 2]])
        assert len(scope) == 0
