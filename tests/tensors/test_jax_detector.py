"""What a leak detector tells of JAX's arrays: names of operations, and variables left over."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

import disposescope as ds
from disposescope.leaks import LeakDetector
from disposescope.leaks.births.log import LOG

X, W, KEY, PLAIN = jnp.ones((3, 3)), jnp.full((3, 3), 2.0), jax.random.key(0), np.ones(5)


def loss(x: Any) -> Any:
    return (x * x).sum()


@jax.jit
def step(x: Any) -> Any:
    return x * 2


class Model:
    @partial(jax.jit, static_argnums=0)
    def apply(self, x: Any) -> Any:
        return x + 1


MODEL = Model()
EXPRESSIONS = {
    "jnp.zeros(3)": "zeros",
    "jnp.linspace(0, 1, 7)": "linspace",
    "jnp.array([1.0, 2.0])": "array",
    "jnp.where(X > 1, X, W)": "where",
    "jnp.einsum('ij,jk->ik', X, W)": "einsum",
    "jnp.concatenate([X, *[W]], **{'axis': 0})": "concatenate",
    "jnp.linalg.norm(X)": "norm",
    "jnp.float32(3)": "float32",
    "X @ W": "matmul",
    "2 - X": "sub",
    "-X": "neg",
    "X < W": "lt",
    "X[0]": "__getitem__",
    "X[1:]": "__getitem__",
    "X.sum()": "sum",
    "X.T": "T",
    "X.at[0].set(5.0)": "set",
    "X.astype('int32')": "astype",
    "step(X)": "step",
    "MODEL.apply(X)": "apply",
    "jax.jit(loss)(X)": "jit",
    "jax.grad(loss)(X)": "grad",
    "jax.vmap(jax.grad(loss))(X)": "vmap",
    "jax.random.normal(KEY, (3,))": "normal",
    "jax.random.key(3)": "key",
    "jax.random.split(KEY)": "split",
    "jax.device_put(PLAIN)": "device_put",
    "jax.nn.relu(X)": "relu",
    "jax.lax.scan(lambda c, x: (c + x, c), jnp.float32(0), X[0])": "scan",
    "(lambda f: f(X))(jnp.tanh)": "f",
    "[jnp.exp][0](X)": None,
}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_operation_is_named_by_the_expression_and_never_by_a_wrapper(expression: str) -> None:
    code = compile(expression, __file__, "eval")
    # The first call compiles, and comes by another way.
    for _ in range(2):
        with LeakDetector() as detector:
            kept = eval(code, globals())
            named = [record.op for record in detector.take_snapshot() if record.kind == "jax.Array"]
        assert named
        assert named[-1] == EXPRESSIONS[expression]
        assert not {"reraise_with_filtered_traceback", "cache_miss", "wrapper", "_pjit"} & set(named)
        del kept


def test_a_key_that_a_loop_has_left_over_is_no_leak() -> None:
    with LeakDetector() as detector:
        for number in range(3):
            with ds.dispose_scope("step"):
                key = jax.random.key(number)
        report = detector.report()
    assert report.leaks == ()
    [left] = report.leftovers
    assert (left.count, left.state) == (1, "disposed")
    assert ": local 'key'" in left.holder
    assert key is not None


def test_a_history_of_disposed_keys_is_a_leak() -> None:
    history: list[Any] = []
    with LeakDetector() as detector:
        for number in range(3):
            with ds.dispose_scope("step"):
                history.append(jax.random.key(number))
        report = detector.report()
    [leak] = report.leaks
    assert (leak.count, leak.state, report.leftovers) == (3, "disposed", ())


@pytest.mark.parametrize(
    "make",
    [lambda: jnp.array(np.ones(1000, np.float32)), lambda: jax.device_put(np.ones(1_000_000, np.float32))],
    ids=["copied", "taken over"],
)
def test_an_array_that_is_made_of_a_numpy_array_is_one_record(make: Any) -> None:
    with LeakDetector() as detector:
        kept = make()
        assert [(record.kind, record.nbytes) for record in detector.take_snapshot()] == [("jax.Array", kept.nbytes)]


def test_memory_of_numpy_that_arrays_show_is_in_use_once_and_numpys_again_after_them() -> None:
    def in_use() -> int:
        detector.take_snapshot()
        return LOG.live_nbytes().get("cpu:0", 0)

    nbytes = 10 * 4_000_000
    with LeakDetector() as detector:
        plain = [np.ones(1_000_000, np.float32) for _ in range(10)]
        kept = [jax.device_put(array).block_until_ready() for array in plain]
        assert in_use() == nbytes
        del kept
        assert in_use() == nbytes
        del plain
        assert in_use() == 0


def test_a_block_of_which_an_array_shows_a_part_is_reported() -> None:
    with LeakDetector() as detector:
        kept = jax.device_put(np.ones(1_000_000, np.float32)[:200_000])
        kept.block_until_ready()
        told = {(record.kind, record.nbytes) for record in detector.take_snapshot()}
    assert ("jax.Array", 800_000) in told


BOX: dict[str, Any] = {}


@pytest.fixture
def box() -> Iterator[dict[str, Any]]:
    yield BOX
    BOX.clear()


@pytest.mark.long
@pytest.mark.parametrize("fetch", [jax.device_get, lambda array: array.__array__()], ids=["device_get", "__array__"])
def test_the_values_of_arrays_that_have_gone_are_reported_where_they_were_fetched(
    fetch: Any, box: dict[str, Any]
) -> None:
    box["history"] = []
    with LeakDetector() as detector:
        for number in range(30):
            box["history"].append(fetch(step(jnp.full(100_000, float(number)))))
            detector.mark()
        report = detector.report(of_program=True)
    [leak] = report.leaks
    assert (leak.kind, leak.sure, leak.tensor_kind, leak.count) == ("growth", "likely", "numpy.ndarray", 30)
    assert leak.nbytes == 30 * 400_000
    assert leak.holder == f"module {__name__}.BOX['history'][0]"


@pytest.mark.long
def test_values_of_an_array_that_is_there_count_once_however_often_they_are_fetched(box: dict[str, Any]) -> None:
    with LeakDetector() as detector:
        box["array"] = array = step(jnp.ones(100_000))
        box["values"] = [jax.device_get(array) for _ in range(3)]
        del array
        # What has four bytes is a constant of a compiled function.
        large = [(one.kind, one.nbytes) for one in detector.take_snapshot() if one.nbytes > 4]
        assert large == [("jax.Array", 400_000)]
        del box["array"]
        kept = detector.report(of_program=True).kept[0]
        assert (kept.tensor_kind, kept.nbytes) == ("numpy.ndarray", 400_000)
        box.clear()
        assert [one.nbytes for one in detector.take_snapshot() if one.nbytes > 4] == []


@pytest.mark.long
def test_who_has_the_values_of_an_array_holds_its_memory(box: dict[str, Any]) -> None:
    with LeakDetector() as detector:
        array = step(jnp.ones(100_000))
        box["values"] = np.from_dlpack(array)
        del array
        kept = detector.report(of_program=True).kept[0]
    assert (kept.tensor_kind, kept.nbytes) == ("numpy.ndarray", 400_000)
    assert kept.holder == f"module {__name__}.BOX['values']"
