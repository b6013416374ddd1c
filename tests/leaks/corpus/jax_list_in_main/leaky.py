"""A training loop in main() keeps the weights of each step; JAX's hook sees all births of arrays.

kind: growth
holder: main(): local 'history'
"""

import jax
import jax.numpy as jnp


@jax.jit
def update(weights, batch):
    gradient = jax.grad(lambda given: jnp.mean((batch @ given) ** 2))(weights)
    return weights - 0.1 * gradient


def main():
    key = jax.random.PRNGKey(0)
    weights = jnp.ones((128, 32))
    history = []
    for _ in range(240):
        key, part = jax.random.split(key)
        batch = jax.random.normal(part, (16, 128))
        weights = update(weights, batch)  # LEAK
        history.append(weights)
    print(len(history))


main()
