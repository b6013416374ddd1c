"""The containers of other libraries are walked. What is not installed is skipped."""

import functools

import numpy as np
import pytest

import disposescope as ds
from disposescope.leaks import LeakDetector


def moved(make):
    """Move out what `make` returns.

    Return the bytes of the scope before and after that, and what was moved.
    """
    with ds.dispose_scope(), ds.dispose_scope(strict=True) as scope:
        made = make()
        before = scope.nbytes
        assert ds.move_to_outer(made) is made
        return before, scope.nbytes, made


def several(make):
    return {"list": [make()], "pair": (make(), make())}


ROWS = 1000


class TestPandas:
    @pytest.mark.parametrize("name", ["frame", "series", "index", "masked", "categorical", "times", "multi", "groups"])
    def test_the_arrays_in_it_move(self, name):
        pd = pytest.importorskip("pandas")
        numbers = functools.partial(np.arange, ROWS, dtype=float)
        make = {
            "frame": lambda: pd.DataFrame({"a": numbers(), "b": numbers().astype(int), "c": numbers() > 3}),
            "series": lambda: pd.Series(numbers() + 1, index=numbers() * 2, name="x"),
            "index": lambda: pd.Index(numbers() + 0.5),
            "masked": lambda: pd.array(np.arange(ROWS), dtype="Int64"),
            "categorical": lambda: pd.Series(pd.Categorical.from_codes(np.arange(ROWS) % 3, categories=[1, 2, 3])),
            "times": lambda: pd.DataFrame({"t": pd.to_datetime(np.arange(ROWS), unit="s")}),
            "multi": lambda: pd.Series(numbers(), index=pd.MultiIndex.from_product([range(10), range(ROWS // 10)])),
            "groups": lambda: pd.DataFrame({"a": numbers(), "k": numbers() // 10}).groupby("k").mean(),
        }[name]
        make()
        for tree in (make, functools.partial(several, make)):
            before, after, _ = moved(tree)
            assert before > 0
            assert after == 0

    def test_tensors_in_a_column_of_objects_move(self):
        pd = pytest.importorskip("pandas")
        with ds.dispose_scope() as outer, ds.dispose_scope() as scope:
            tensors = [ds.ones(1), ds.ones(2)]
            frame = pd.DataFrame({"n": [1, 2], "t": pd.Series(tensors, dtype=object)})
            scope.move_to_outer(frame)
            assert all(tensor in outer for tensor in tensors)
            ds.dispose(frame)
            assert all(map(ds.is_disposed, tensors))


class TestScipy:
    @pytest.mark.parametrize("name", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
    @pytest.mark.parametrize("kind", ["matrix", "array"])
    def test_the_arrays_of_a_sparse_one_move(self, name, kind):
        sparse = pytest.importorskip("scipy.sparse")
        cls = getattr(sparse, f"{name}_{kind}")
        with ds.dispose_scope(), ds.dispose_scope() as scope:
            array = cls(np.eye(50))
            ds.move_to_outer(array)
            assert scope.nbytes == 0
            assert array.sum() == 50.0


class TestPyArrow:
    @pytest.mark.parametrize("name", ["array", "slice", "chunks", "table", "batch", "list", "dictionary", "buffer"])
    def test_the_arrays_in_it_move(self, name):
        pa = pytest.importorskip("pyarrow")

        def numbers(dtype=float, count=ROWS):
            return np.arange(count, dtype=dtype)

        make = {
            "array": lambda: pa.array(numbers()),
            "slice": lambda: pa.array(numbers())[10:20],
            "chunks": lambda: pa.chunked_array([numbers(), numbers(count=100_000)]),
            "table": lambda: pa.table({"a": numbers(), "b": numbers("i4")}),
            "batch": lambda: pa.record_batch({"a": numbers(), "b": numbers("i4")}),
            "list": lambda: pa.FixedSizeListArray.from_arrays(pa.array(numbers()), 10),
            "dictionary": lambda: pa.DictionaryArray.from_arrays(pa.array(numbers("i4")), pa.array(numbers() + 1)),
            "buffer": lambda: pa.py_buffer(numbers()),
        }[name]
        make()
        for tree in (make, functools.partial(several, make)):
            before, after, made = moved(tree)
            assert before >= 4000
            assert after == 0
            del made

    def test_memory_of_its_own_is_left_alone(self):
        pa = pytest.importorskip("pyarrow")
        with ds.dispose_scope() as outer, ds.dispose_scope() as scope:
            small, large = np.arange(10), np.arange(100_000)
            table = pa.table({"a": pa.array(["x", None, "long"] * 1000), "b": pa.nulls(3000), "c": range(3000)})
            scope.move_to_outer([table, pa.allocate_buffer(1000), pa.scalar(3), pa.schema([]), pa.int32()])
            assert ds.owner_of(small) is ds.owner_of(large) is scope
            del small, large
            scope.move_to_outer(table)
            assert outer.nbytes == scope.nbytes == 0


class TestTransformers:
    @pytest.mark.parametrize("name", ["DynamicCache", "EncoderDecoderCache"])
    def test_a_cache_of_keys_and_values_moves(self, name):
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        with ds.dispose_scope() as outer:
            with ds.dispose_scope() as scope:
                parts = [transformers.DynamicCache() for _ in range(2)]
                for layer in range(2):
                    parts[0].update(torch.ones(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), layer)
                cache = parts[0] if name == "DynamicCache" else transformers.EncoderDecoderCache(*parts)
                assert scope.move_to_outer({"past_key_values": cache})["past_key_values"] is cache
            assert len(outer) == 4
            keys = parts[0].layers[0].keys
            assert keys in outer
            ds.dispose(cache)
            assert ds.is_disposed(keys)

    def test_an_output_moves_with_what_is_in_it(self):
        torch = pytest.importorskip("torch")
        outputs = pytest.importorskip("transformers.modeling_outputs")
        transformers = pytest.importorskip("transformers")

        @ds.dispose_scope()
        def run():
            cache = transformers.DynamicCache()
            cache.update(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1), 0)
            return outputs.CausalLMOutputWithPast(logits=torch.ones(2) * 2, past_key_values=cache)

        with ds.dispose_scope() as scope:
            output = run()
            assert len(scope) == 3
            assert output.logits in scope


class TestTorchmetrics:
    def test_states_and_caches_of_a_metric_move(self):
        torch = pytest.importorskip("torch")
        torchmetrics = pytest.importorskip("torchmetrics")
        collection = torchmetrics.MetricCollection([torchmetrics.MeanMetric(), torchmetrics.CatMetric()])
        plain = torchmetrics.MetricCollection([torchmetrics.MeanMetric(), torchmetrics.CatMetric()])
        for step in range(3):
            plain(torch.full((2,), float(step)))
            with ds.dispose_scope(), ds.dispose_scope() as scope:
                collection(torch.full((2,), float(step)))
                scope.move_to_outer(collection)
                ds.current_scope().outer.detach([collection])
        assert str(collection.compute()) == str(plain.compute())
        ds.dispose(collection)
        assert str(collection.compute()) == str(plain.compute())


class TestFlax:
    def test_a_model_its_state_and_its_optimizer_move(self):
        jax = pytest.importorskip("jax")
        nnx = pytest.importorskip("flax.nnx")
        optax = pytest.importorskip("optax")
        with ds.dispose_scope() as outer:
            with ds.dispose_scope() as scope:
                model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
                optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
                state = scope.move_to_outer(nnx.state(model))
                assert {"kernel", "bias"} == set(state)
                assert model.kernel[...] in outer
                scope.move_to_outer([model, optimizer])
            assert all(not leaf.is_deleted() for leaf in jax.tree_util.tree_leaves(nnx.state(optimizer)))
            ds.dispose(nnx.state(model))
            assert all(leaf.is_deleted() for leaf in jax.tree_util.tree_leaves(state))

    def test_dispose_leaves_what_nobody_owns_in_a_model(self):
        pytest.importorskip("jax")
        nnx = pytest.importorskip("flax.nnx")
        model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        ds.dispose(model)
        assert model.kernel[...].shape == (2, 3)


@pytest.mark.parametrize("name", ["pandas", "scipy"])
def test_what_a_library_computes_is_born_at_the_line_that_calls_it(name):
    pytest.importorskip(name)
    with LeakDetector() as detector:
        rows = np.ones((ROWS, 8))
        if name == "pandas":
            import pandas as pd

            kept = pd.DataFrame(rows).rolling(3).mean()
        else:
            from scipy import ndimage

            kept = ndimage.gaussian_filter(rows, 2)
        records = [record for record in detector.take_snapshot() if record.nbytes >= rows.nbytes]
    assert kept is not None
    assert len(records) >= 2
    assert {record.site.file for record in records} == {__file__}
