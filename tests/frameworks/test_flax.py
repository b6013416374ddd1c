"""Training steps of flax in scopes: nnx's models, optimizers and metrics keep their own arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.frameworks.rounds import LIBRARIES_WARN, Round, assert_same_as_plain, needs

needs("flax", "jax", "optax")
import jax
import jax.numpy as jnp
import optax
from flax import linen, nnx
from flax.training import train_state

pytestmark = LIBRARIES_WARN


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.last = nnx.Linear(8, 3, rngs=rngs)
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x: Any) -> Any:
        self.calls.value = self.calls.value + 1
        return self.last(self.drop(nnx.relu(self.norm(self.first(x)))))


def batches(count: int = 4) -> list[tuple[Any, Any]]:
    keys = jax.random.split(jax.random.key(1), count)
    return [(jax.random.normal(key, (6, 4)), jax.random.randint(key, (6,), 0, 3)) for key in keys]


def loss_of(model: Any, x: Any, y: Any) -> Any:
    scores = model(x)
    return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean(), scores


def train_step(model: Any, optimizer: Any, metrics: Any, x: Any, y: Any) -> Any:
    (loss, scores), gradients = nnx.value_and_grad(loss_of, has_aux=True)(model, x, y)
    optimizer.update(model, gradients)
    metrics.update(loss=loss, logits=scores, labels=y)
    return loss


def trained(step: Round, compiled: bool) -> object:
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.05), wrt=nnx.Param)
    metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"), accuracy=nnx.metrics.Accuracy())
    run = nnx.jit(train_step) if compiled else train_step
    losses: list[float] = []
    for x, y in batches(4 if compiled else 2):
        with step():
            losses.append(float(run(model, optimizer, metrics, x, y)))
    values = jax.tree.leaves(nnx.to_pure_dict(nnx.state(model, nnx.Not(nnx.RngState))))
    kept = jax.tree.leaves(nnx.to_pure_dict(nnx.state(optimizer)))
    return losses, values, kept, metrics.compute(), int(model.calls.value)


def compiled_steps(step: Round) -> object:
    return trained(step, compiled=True)


def steps_as_they_are(step: Round) -> object:
    return trained(step, compiled=False)


def cache_of_attention(step: Round) -> object:
    attention = nnx.MultiHeadAttention(2, 8, 8, decode=True, rngs=nnx.Rngs(0))
    attention.init_cache((1, 6, 8))
    found: list[object] = []
    for index in range(4):
        with step():
            found.append(attention(jnp.full((1, 1, 8), float(index))).tolist())
    return found


def train_state_of_linen(step: Round) -> object:
    model = linen.Sequential([linen.Dense(8), linen.relu, linen.Dense(3)])
    parameters = model.init(jax.random.key(0), jnp.ones((1, 4)))
    state = train_state.TrainState.create(apply_fn=model.apply, params=parameters, tx=optax.adam(0.05))

    @jax.jit
    def update(state: Any, x: Any, y: Any) -> Any:
        def loss(parameters: Any) -> Any:
            scores = state.apply_fn(parameters, x)
            return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()

        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    for x, y in batches():
        with step():
            state = step.out(update(state, x, y))
    return jax.tree.leaves((state.params, state.opt_state, state.step))


PROGRAMS: tuple[Callable[[Round], object], ...] = (
    compiled_steps,
    steps_as_they_are,
    cache_of_attention,
    train_state_of_linen,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_program_runs_unchanged(program: Callable[[Round], object]) -> None:
    assert_same_as_plain(program)
