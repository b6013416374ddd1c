"""NumPy's ufuncs and functions take Tensors and give Tensors."""

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import disposescope as ds
from tests.tensors.outcomes import assert_same, outcome

UFUNCS = [
    ufunc
    for name, ufunc in sorted(vars(np).items())
    if isinstance(ufunc, np.ufunc) and ufunc.signature is None and name == ufunc.__name__
]
DTYPES = ["?", "i2", "u4", "i8", "f4", "f8", "c16", "m8[s]", "M8[D]"]


@given(st.sampled_from(UFUNCS), st.data())
def test_every_ufunc_gives_what_it_gives_for_arrays(ufunc, data):
    operands = [data.draw(hnp.arrays(data.draw(st.sampled_from(DTYPES)), (2, 3))) for _ in range(ufunc.nin)]
    wrapped = [ds.tensor(operand) for operand in operands]
    wrapped[-1] = data.draw(st.sampled_from([wrapped[-1], operands[-1]])) if ufunc.nin > 1 else wrapped[-1]
    assert_same(outcome(lambda: ufunc(*wrapped)), outcome(lambda: ufunc(*operands)))


REDUCTIONS = [np.add, np.multiply, np.maximum, np.logical_and, np.bitwise_or, np.hypot]


@given(
    st.sampled_from(REDUCTIONS),
    st.sampled_from(["?", "i4", "f8"]).flatmap(lambda dtype: hnp.arrays(dtype, (2, 3))),
    st.sampled_from([{}, {"axis": 0}, {"axis": 1, "keepdims": True}, {"axis": None, "initial": 1}, {"axis": (0, 1)}]),
    st.booleans(),
)
def test_every_method_of_a_ufunc_gives_what_it_gives_for_arrays(ufunc, a, options, masked):
    if masked:
        options = {"initial": 1, **options, "where": a != 0}
    wrapped = {key: ds.asarray(value) if isinstance(value, np.ndarray) else value for key, value in options.items()}
    t = ds.tensor(a)
    assert_same(outcome(lambda: ufunc.reduce(t, **wrapped)), outcome(lambda: ufunc.reduce(a, **options)))
    assert_same(outcome(lambda: ufunc.accumulate(t, 1)), outcome(lambda: ufunc.accumulate(a, 1)))
    assert_same(outcome(lambda: ufunc.outer(t, a[0])), outcome(lambda: ufunc.outer(a, a[0])))
    indices = np.array([0, 1])
    assert_same(
        outcome(lambda: ufunc.reduceat(t, ds.asarray(indices), 1)), outcome(lambda: ufunc.reduceat(a, indices, 1))
    )


def test_at_changes_the_tensor_and_takes_tensors_for_indices_and_values():
    t = ds.zeros((2, 2))
    assert np.add.at(t, (ds.tensor([0, 0]), [1, 1]), ds.tensor([1.0, 2.0])) is None
    assert t.tolist() == [[0.0, 3.0], [0.0, 0.0]]
    a = np.zeros(2)
    np.add.at(a, ds.tensor([1]), 5)
    assert a.tolist() == [0.0, 5.0]


def test_out_is_returned_itself_whether_tensor_or_array():
    t, a = ds.zeros(2), np.zeros(2)
    assert np.add(ds.ones(2), 1, out=t) is t
    assert np.add(ds.ones(2), 1, out=a) is a
    assert np.add(np.ones(2), 1, t) is t
    whole, rest = np.divmod(ds.tensor([5.0, 7.0]), 3, out=(t, None))
    assert whole is t
    assert type(rest) is ds.Tensor
    assert (t.tolist(), rest.tolist(), a.tolist()) == ([1.0, 2.0], [2.0, 1.0], [2.0, 2.0])
    assert np.add.reduce(ds.ones((3, 2)), axis=0, out=t) is t
    assert np.sum(ds.ones((4, 2)), axis=0, out=a) is a
    assert np.concatenate([ds.ones(1), [5.0]], out=a) is a
    assert np.stack([ds.ones(1), ds.zeros(1)], out=ds.zeros((2, 1))).tolist() == [[1.0], [0.0]]
    assert a.tolist() == [1.0, 5.0]


def test_where_leaves_what_is_not_selected():
    out = ds.full(3, 9.0)
    np.multiply(ds.arange(3.0), 2, out=out, where=ds.tensor([True, False, True]))
    assert out.tolist() == [0.0, 9.0, 4.0]


MATRIX = np.array([[4.0, 1.0], [2.0, 3.0]])
FUNCTIONS = {
    "concatenate": lambda x: np.concatenate([x, x], axis=1),
    "stack": lambda x: np.stack((x, MATRIX)),
    "block": lambda x: np.block([[x, x], [x, x]]),
    "where": lambda x: np.where(x > 2, x, 0),
    "where alone": lambda x: np.where(x > 2),
    "einsum": lambda x: np.einsum("ij,jk->ik", x, x),
    "einsum_path": lambda x: np.einsum_path("ij,jk->ik", x, x)[0],
    "norm": np.linalg.norm,
    "svd": np.linalg.svd,
    "slogdet": np.linalg.slogdet,
    "eigh": np.linalg.eigh,
    "solve": lambda x: np.linalg.solve(x, x[0]),
    "lstsq": lambda x: np.linalg.lstsq(x, x[0]),
    "matrix_rank": np.linalg.matrix_rank,
    "det": np.linalg.det,
    "split": lambda x: np.split(x, 2),
    "array_split": lambda x: np.array_split(x, 3),
    "meshgrid": lambda x: np.meshgrid(x[0], x[1]),
    "broadcast_arrays": lambda x: np.broadcast_arrays(x, x[0]),
    "unique": lambda x: np.unique(x, return_counts=True),
    "unique_all": np.unique_all,
    "histogram": lambda x: np.histogram(x, bins=2),
    "histogramdd": lambda x: np.histogramdd(x, bins=2),
    "gradient": np.gradient,
    "pad": lambda x: np.pad(x, 1),
    "median": np.median,
    "percentile": lambda x: np.percentile(x, [10, 90], axis=0),
    "average": lambda x: np.average(x, weights=x, returned=True),
    "nanmean": np.nanmean,
    "cov": np.cov,
    "interp": lambda x: np.interp(x[0], [1.0, 4.0], [0.0, 1.0]),
    "searchsorted": lambda x: np.searchsorted(np.sort(x[0]), x),
    "take_along_axis": lambda x: np.take_along_axis(x, np.argsort(x), axis=1),
    "apply_along_axis": lambda x: np.apply_along_axis(lambda row: row.sum(), 1, x),
    "tensordot": lambda x: np.tensordot(x, x),
    "kron": lambda x: np.kron(x, x),
    "fft": np.fft.fft,
    "zeros_like": np.zeros_like,
    "full_like": lambda x: np.full_like(x, 3, dtype=int),
    "roll": lambda x: np.roll(x, 1),
    "flip": np.flip,
    "atleast_3d": np.atleast_3d,
    "vsplit": lambda x: np.vsplit(x, 2),
    "isclose": lambda x: np.isclose(x, x),
    "allclose": lambda x: np.allclose(x, x),
    "array_equal": lambda x: np.array_equal(x, x),
    "shape": np.shape,
    "ndim": np.ndim,
    "size": np.size,
    "count_nonzero": np.count_nonzero,
    "result_type": lambda x: np.result_type(x, np.float32),
    "iscomplexobj": np.iscomplexobj,
    "nonzero": np.nonzero,
    "triu": np.triu,
    "polyfit": lambda x: np.polyfit(x[0], x[1], 1),
    "insert": lambda x: np.insert(x, 1, x[0], axis=0),
    "array2string": np.array2string,
    "sliding_window_view": lambda x: np.lib.stride_tricks.sliding_window_view(x, 2, axis=0),
    "sort": lambda x: np.sort(x, axis=None),
    "choose": lambda x: np.choose([0, 1], [x, x]),
    "select": lambda x: np.select([x > 3, x > 1], [x, -x]),
    "dot": lambda x: np.dot(x, x[0]),
    "clip": lambda x: np.clip(x, 2, 3),
    "isin": lambda x: np.isin(x, [1.0]),
}
if hasattr(np, "cumulative_sum"):  # since NumPy 2.1
    FUNCTIONS["cumulative_sum"] = lambda x: np.cumulative_sum(x, axis=0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_numpy_gives_tensors_where_it_gives_arrays(name):
    function = FUNCTIONS[name]
    assert_same(function(ds.tensor(MATRIX)), function(MATRIX))


def test_named_results_keep_their_names():
    result = np.linalg.svd(ds.tensor(MATRIX))
    assert type(result.S) is ds.Tensor
    assert type(result).__name__ == "SVDResult"


def test_tensors_are_found_in_any_sequence():
    pair = collections.namedtuple("Pair", "a b")(ds.ones(1), ds.zeros(1))
    assert np.concatenate(pair).tolist() == [1.0, 0.0]
    assert np.concatenate(collections.deque(pair)).tolist() == [1.0, 0.0]


def test_a_result_that_is_the_argument_is_the_argument_and_no_birth():
    t = ds.ones(2)
    ds.reset_statistics()
    assert np.atleast_1d(t) is t
    assert np.real(t) is t
    assert ds.statistics().created_unscoped == 0


def test_functions_that_write_into_their_argument_write_into_the_tensor():
    t = ds.zeros((2, 2))
    np.copyto(t, [1.0, 2.0])
    np.fill_diagonal(t, ds.tensor(9.0))
    np.put(t, 1, 5)
    np.place(t, t == 1, [7])
    assert t.tolist() == [[9.0, 5.0], [7.0, 9.0]]


def test_like_makes_tensors():
    t = ds.ones(1)
    assert type(np.zeros(2, like=t)) is ds.Tensor
    assert type(np.asarray([1], like=t)) is ds.Tensor
    assert type(np.arange(3, like=t)) is ds.Tensor


def test_a_class_with_its_own_functions_has_the_say():
    class Stranger:
        def __array_function__(self, func, types, args, kwargs):
            return sorted(cls.__name__ for cls in types)

    assert np.concatenate([ds.ones(1), Stranger()]) == ["Stranger", "Tensor"]


def test_a_container_that_is_not_understood_is_refused_at_once():
    class Bag:
        def __init__(self, items):
            self.items = items

        def __iter__(self):
            return iter(self.items)

    with pytest.raises(TypeError, match="no implementation found"):
        np.concatenate(Bag([ds.ones(1)]), out=np.ones(1))


def test_results_of_functions_are_born_in_the_scope():
    t = ds.tensor(MATRIX)
    with ds.dispose_scope() as scope:
        result = np.linalg.svd(t)
        assert len(scope) == 3
        assert np.sum(t) is not None
    assert all(part.disposed for part in result)


def test_no_function_exports_memory_on_its_way():
    from disposescope.tensors.tensor.tensor import exported_storages

    t = ds.tensor(MATRIX)
    before = exported_storages()
    for function in FUNCTIONS.values():
        kept = function(t)
        assert exported_storages() == before
        del kept


def test_object_and_record_dtypes_pass():
    objects = ds.tensor([1, 10**30], dtype=object)
    assert (objects + 1).tolist() == [2, 10**30 + 1]
    total = np.add.reduce(objects)
    assert type(total) is ds.Tensor
    assert total.item() == 10**30 + 1
    assert objects.sum().item() == 10**30 + 1
    records = ds.zeros(2, dtype=[("x", "i4"), ("y", "f8", (2,))])
    records["x"] = [1, 2]
    assert np.concatenate([records, records])["x"].tolist() == [1, 2, 1, 2]
    tuples = ds.empty(2, dtype=object)
    tuples[0], tuples[1] = (1,), (2,)
    assert np.add.reduce(tuples).item() == (1, 2)


@pytest.mark.parametrize("copy", [None, False, True])
def test_conversion_to_an_array_follows_numpy(copy):
    t = ds.tensor([1.0, 2.0])
    array = np.array(t, copy=copy)
    assert type(array) is np.ndarray
    assert np.shares_memory(array, t) is (copy is not True)
    assert np.asarray(t, dtype="f4").dtype == np.float32
    with pytest.raises(ValueError, match="copy"):
        np.asarray(t, dtype=int, copy=False)
    assert np.asarray(t, dtype="f8", copy=False).tolist() == [1.0, 2.0]


def test_bytes_and_buffers_show_the_elements():
    t = ds.tensor([1, 2], dtype="u1")
    assert bytes(t) == b"\x01\x02"
    assert bytes(t.data) == b"\x01\x02"
    t.data[0] = 7
    assert t.tolist() == [7, 2]


def test_an_array_does_not_keep_the_tensor_that_it_was_made_of():
    ds.reset_statistics()
    before = ds.statistics().live
    array = np.asarray(ds.ones(2))
    assert ds.statistics().live == before
    assert array.tolist() == [1.0, 1.0]
