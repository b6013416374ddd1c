"""Operators give what NumPy gives: same values, same dtype, as Tensors."""

import decimal
import operator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import disposescope as ds
from tests.tensors.outcomes import assert_same, outcome

ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow]
BITWISE = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]
COMPARISONS = [operator.lt, operator.le, operator.eq, operator.ne, operator.ge, operator.gt]
BINARY = [*ARITHMETIC, *BITWISE, *COMPARISONS, operator.matmul, divmod]
UNARY = [operator.neg, operator.pos, operator.invert, abs]
DTYPES = ["?", "i1", "u1", "i4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]


def arrays(shape=None):
    shapes = hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3) if shape is None else st.just(shape)
    return st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, shapes))


SCALARS = st.one_of(
    st.booleans(),
    st.integers(-100, 100),
    st.floats(width=32),
    st.complex_numbers(max_magnitude=1e3),
    st.builds(np.float32, st.floats(width=32)),
    st.builds(np.int8, st.integers(-128, 127)),
)


@given(st.sampled_from(BINARY), arrays(), arrays())
def test_two_tensors_give_what_two_arrays_give(operate, a, b):
    assert_same(outcome(lambda: operate(ds.tensor(a), ds.tensor(b))), outcome(lambda: operate(a, b)))


@given(st.sampled_from(BINARY), arrays((2, 2)), arrays((2, 2)))
def test_a_tensor_and_a_plain_array_give_a_tensor_in_either_order(operate, a, b):
    expected = outcome(lambda: operate(a, b))
    assert_same(outcome(lambda: operate(ds.tensor(a), b)), expected)
    assert_same(outcome(lambda: operate(a, ds.tensor(b))), expected)


@given(st.sampled_from(BINARY), arrays(), SCALARS)
def test_a_scalar_is_promoted_as_beside_an_array(operate, a, scalar):
    assert_same(outcome(lambda: operate(ds.tensor(a), scalar)), outcome(lambda: operate(a, scalar)))
    assert_same(outcome(lambda: operate(scalar, ds.tensor(a))), outcome(lambda: operate(scalar, a)))


@given(st.sampled_from(UNARY), arrays())
def test_a_unary_operator_gives_what_it_gives_for_an_array(operate, a):
    assert_same(outcome(lambda: operate(ds.tensor(a))), outcome(lambda: operate(a)))


IN_PLACE = ["iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul"]
IN_PLACE += ["ilshift", "irshift", "iand", "ior", "ixor"]


@given(st.sampled_from(IN_PLACE), arrays((2, 2)), st.one_of(arrays((2, 2)), SCALARS), st.booleans())
def test_an_augmented_assignment_changes_the_memory_that_a_view_sees(name, a, b, wrapped):
    operate = getattr(operator, name)
    t = ds.tensor(a)
    view = t[:1]
    other = ds.tensor(b) if wrapped and isinstance(b, np.ndarray) else b
    expected = a.copy()
    result = outcome(lambda: operate(t, other))
    wanted = outcome(lambda: operate(expected, b))
    assert result is t if isinstance(wanted, np.ndarray) else result == wanted
    np.testing.assert_array_equal(t.numpy(), expected)
    np.testing.assert_array_equal(view.numpy(), expected[:1])


@pytest.mark.parametrize("other", [None, "text", [1, 2], (1, 2), Fraction(1, 3), decimal.Decimal(2)], ids=repr)
@pytest.mark.parametrize("operate", [operator.add, operator.eq, operator.ne, operator.lt, operator.mul])
def test_any_other_operand_is_treated_as_an_array_treats_it(operate, other):
    a = np.array([1, 2])
    assert_same(outcome(lambda: operate(ds.tensor(a), other)), outcome(lambda: operate(a, other)))
    assert_same(outcome(lambda: operate(other, ds.tensor(a))), outcome(lambda: operate(other, a)))


def test_a_class_that_refuses_ufuncs_has_the_say():
    class Stranger:
        __array_ufunc__ = None

        def __radd__(self, other):
            return ("radd", type(other))

    assert ds.ones(2) + Stranger() == ("radd", ds.Tensor)
    with pytest.raises(TypeError):
        ds.ones(2) - Stranger()


def test_a_class_with_its_own_ufuncs_gets_the_tensor_and_not_its_array():
    class Series(np.lib.mixins.NDArrayOperatorsMixin):
        def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
            return [type(value).__name__ for value in (*inputs, *kwargs.get("out", ()))]

    assert ds.ones(2) + Series() == ["Tensor", "Series"]
    assert np.add(ds.ones(2), Series()) == ["Tensor", "Series"]
    assert np.add(ds.ones(2), 1, out=Series()) == ["Tensor", "int", "Series"]
    assert 1 - Series() == ["int", "Series"]
    t = ds.ones(2)
    same = t
    same += Series()
    assert same is t


def test_a_class_with_a_priority_has_the_say():
    class Matrix:
        __array_priority__ = 10.1

        def __rmatmul__(self, other):
            return type(other)

        __req__ = None

    assert ds.ones(2) @ Matrix() is ds.Tensor


def test_a_masked_array_stays_one():
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    for result in (ds.ones(2) + masked, masked + ds.ones(2), np.add(ds.ones(2), masked)):
        assert isinstance(result, np.ma.MaskedArray)
        assert result.mask.tolist() == [False, True]
    t = ds.ones(2)
    t += np.array([1.0, 2.0]).view(np.memmap)
    assert t.tolist() == [2.0, 3.0]


def test_a_torch_tensor_is_refused_by_name():
    torch = pytest.importorskip("torch")
    for compute in (lambda: ds.ones(2) + torch.ones(2), lambda: torch.ones(2) + ds.ones(2)):
        with pytest.raises(TypeError, match="unsupported operand"):
            compute()


def test_a_plain_array_stays_itself_where_it_is_the_target():
    target = np.ones(2)
    same = target
    same += ds.ones(2)
    assert same is target
    assert target.tolist() == [2.0, 2.0]


def test_a_third_argument_of_pow_is_refused_as_by_an_array():
    with pytest.raises(TypeError):
        pow(ds.ones(2), 2, 3)


def test_tensors_are_hashed_by_identity_and_compared_by_element():
    a, b = ds.ones(1), ds.ones(1)
    assert len({a, b}) == 2
    assert bool(a == b)
    assert (ds.arange(3) == [0, 5, 2]).tolist() == [True, False, True]


def test_a_result_of_an_operator_is_born_in_the_scope_and_a_temporary_dies_by_reference_count():
    a = ds.ones(3)
    with ds.dispose_scope() as scope:
        ds.reset_statistics()
        kept = a * 2 + 1
        assert len(scope) == 1
        now = ds.statistics()
        assert (now.created_in_scope, now.disposed_in_scope) == (2, 1)
    assert kept.disposed
    assert not a.disposed


def test_every_operator_leaves_the_result_to_a_class_that_refuses_ufuncs():
    class Stranger:
        __array_ufunc__ = None

    for operate in BINARY:
        if operate in (operator.eq, operator.ne):
            assert operate(ds.ones(2), Stranger()) is (operate is operator.ne)
            continue
        for operands in ((ds.ones(2), Stranger()), (Stranger(), ds.ones(2))):
            with pytest.raises(TypeError, match=r"not supported|unsupported operand"):
                operate(*operands)


@pytest.mark.parametrize("operate", BINARY)
def test_every_operator_takes_a_list_and_a_tensor_on_either_side(operate):
    a = np.array([[3, 1], [2, 5]])
    for left, right in ((a, a), (a, a.tolist()), (a.tolist(), a)):
        wrapped = [ds.tensor(side) if isinstance(side, np.ndarray) else side for side in (left, right)]
        assert_same(operate(*wrapped), operate(left, right))
