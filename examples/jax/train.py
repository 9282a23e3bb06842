"""A JAX training on several processes, which resumes from its newest checkpoint.

`jax.distributed.initialize()` needs no arguments. Of this project, only the three calls of `rank` are used.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dtj_trainer import rank


def main(steps: int = 200) -> None:
    jax.distributed.initialize()
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    everywhere, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))

    @jax.jit
    def train(weights, x, y):
        def loss(weights):
            return jnp.mean((jnp.tanh(x @ weights["first"]) @ weights["second"] - y) ** 2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return value, jax.tree.map(lambda weight, gradient: weight - 0.05 * gradient, weights, gradients)

    generator = np.random.default_rng(7)
    weights = {"first": generator.normal(size=(8, 32)) / 3, "second": generator.normal(size=(32, 1)) / 6}
    start = 0
    if found := rank.newest():
        start, folder = found
        with np.load(folder / "weights.npz") as saved:
            weights = dict(saved)
    weights = {
        name: jax.make_array_from_process_local_data(everywhere, np.asarray(value, np.float32))
        for name, value in weights.items()
    }

    def write(folder):
        np.savez(folder / "weights.npz", **{name: np.asarray(value) for name, value in weights.items()})

    for step in range(start + 1, steps + 1):
        generator = np.random.default_rng([step, jax.process_index()])
        x = generator.normal(size=(32, 8)).astype(np.float32)
        y = np.tanh(x.sum(axis=1, keepdims=True))
        value, weights = train(weights, *(jax.make_array_from_process_local_data(split, each) for each in (x, y)))
        rank.report(step, total=steps, loss=value)
        rank.save(step, write, last=step == steps)
    if jax.process_index() == 0:
        print(f"final step={steps} resumed={start} world={jax.process_count()}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
