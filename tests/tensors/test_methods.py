"""The methods of a Tensor give what the methods of an ndarray give."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import disposescope as ds
from tests.tensors.outcomes import assert_same, outcome

DTYPES = ["?", "i4", "u8", "f4", "f8", "c16"]
REDUCTIONS = ["sum", "prod", "mean", "std", "var", "min", "max", "any", "all"]


def arrays(shape=(3, 2)):
    return st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, shape))


@given(
    st.sampled_from(REDUCTIONS),
    arrays(),
    st.sampled_from([(), (0,), (1,), ((0, 1),), (None,), (2,)]),
    st.sampled_from([{}, {"keepdims": True}, {"where": np.array([True, False])}, {"initial": 1}]),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_reduction_gives_what_it_gives_for_an_array(name, a, axis, options):
    t = ds.tensor(a)
    wrapped = {key: ds.tensor(value) if isinstance(value, np.ndarray) else value for key, value in options.items()}
    assert_same(
        outcome(lambda: getattr(t, name)(*axis, **wrapped)), outcome(lambda: getattr(a, name)(*axis, **options))
    )


ONE = {
    "argmin": (),
    "argmax": (0,),
    "cumsum": (1,),
    "cumprod": (),
    "trace": (),
    "round": (1,),
    "clip": (1, 2),
    "conj": (),
    "conjugate": (),
    "dot": (np.ones((2, 3)),),
    "take": (np.array([0, 1]), 1),
    "compress": (np.array([True, False]), 1),
    "nonzero": None,
    "searchsorted": None,
    "argsort": (0,),
    "argpartition": (1, 0),
    "repeat": (np.array([1, 2]), 1),
    "diagonal": (),
    "ravel": ("F",),
    "reshape": (2, 3),
    "transpose": (1, 0),
    "swapaxes": (0, 1),
    "squeeze": (),
    "flatten": (),
    "copy": (),
    "byteswap": (),
    "astype": ("c8",),
    "view": ("u1",),
    "getfield": ("u1", 0),
}


@pytest.mark.parametrize("name", [name for name, arguments in ONE.items() if arguments is not None])
@settings(max_examples=20)
@given(a=arrays())
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_method_gives_what_it_gives_for_an_array(name, a):
    arguments = ONE[name]
    wrapped = [ds.tensor(value) if isinstance(value, np.ndarray) else value for value in arguments]
    assert_same(outcome(lambda: getattr(ds.tensor(a), name)(*wrapped)), outcome(lambda: getattr(a, name)(*arguments)))


def test_nonzero_and_searchsorted_give_tensors_of_indices():
    t = ds.tensor([0, 3, 5])
    (indices,) = t.nonzero()
    assert (type(indices), indices.tolist()) == (ds.Tensor, [1, 2])
    assert int(t.searchsorted(4)) == 2
    assert t.searchsorted(ds.tensor([1, 9]), "right").tolist() == [1, 3]


def test_out_is_returned_itself():
    for out in (ds.zeros(2), np.zeros(2)):
        assert ds.ones((3, 2)).sum(0, out=out) is out
        assert out.tolist() == [3.0, 3.0]
        assert ds.ones((3, 2)).var(axis=0, out=out) is out
        assert ds.tensor([3.0, 1.0]).clip(2, None, out=out) is out
        assert out.tolist() == [3.0, 2.0]


def test_choose_takes_tensors():
    assert ds.tensor([1, 0]).choose([ds.tensor([1, 2]), np.array([3, 4])]).tolist() == [3, 2]


def test_std_and_var_take_degrees_of_freedom():
    a = np.array([1.0, 2.0, 4.0])
    assert float(ds.tensor(a).std(ddof=1)) == a.std(ddof=1)
    assert float(ds.tensor(a).var(ddof=1)) == a.var(ddof=1)


def test_what_sorts_fills_and_puts_does_so_in_place_and_returns_none():
    t = ds.tensor([3, 1, 2])
    alias = t.numpy()
    assert t.sort() is None
    assert alias.tolist() == [1, 2, 3]
    assert t.partition(1) is None
    assert t.put(ds.tensor([0]), ds.tensor([9])) is None
    assert alias.tolist() == [9, 2, 3]
    assert t.fill(ds.tensor(4)) is None
    assert alias.tolist() == [4, 4, 4]


def test_a_result_that_is_the_tensor_is_no_birth():
    t = ds.ones(2)
    ds.reset_statistics()
    assert t.conj() is t
    assert t.astype(float, copy=False) is t
    assert t.byteswap(inplace=True) is t
    assert t.to_device("cpu") is t
    assert t.real is t
    assert ds.statistics().created_unscoped == 0


def test_a_full_reduction_is_owned():
    with ds.dispose_scope() as scope:
        total = ds.arange(4).sum()
        assert total in scope
        assert (total.shape, int(total)) == ((), 6)
    assert total.disposed


def test_errors_are_those_of_numpy():
    with pytest.raises(np.exceptions.AxisError):
        ds.ones(2).sum(axis=3)
    with pytest.raises(ValueError, match="zero-size"):
        ds.ones(0).max()
    with pytest.raises(TypeError):
        ds.ones(2).sum(axes=0)
