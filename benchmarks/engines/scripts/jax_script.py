"""A JAX training whose rank 0 saves one .npz file.

The address, the number of processes and the process id come from the variables of Kubeflow's JAX runtime, which engine
`jax` sets too.
"""

from __future__ import annotations

import os
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from journal import EVERY, PAUSE, Journal, folder

FILE = folder() + "/checkpoint.npz"


def main() -> None:
    """Trains until the process is killed."""
    tuned = {"heartbeat_timeout_seconds": int(value)} if (value := os.environ.get("RECOVERY_HEARTBEAT")) else {}
    rank, world = int(os.environ["JAX_PROCESS_ID"]), int(os.environ["JAX_NUM_PROCESSES"])
    jax.distributed.initialize(os.environ["JAX_COORDINATOR_ADDRESS"], world, rank, **tuned)
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    everywhere, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))

    @jax.jit
    def train(weights: Any, x: Any, y: Any) -> Any:
        def loss(weights: Any) -> Any:
            return jnp.mean((jnp.tanh(x @ weights["first"]) @ weights["second"] - y) ** 2)

        return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, weights, jax.grad(loss)(weights))

    generator = np.random.default_rng(7)
    weights: Any = {"first": generator.normal(size=(32, 64)), "second": generator.normal(size=(64, 1))}
    step = 0
    if os.path.exists(FILE):
        with np.load(FILE) as saved:
            step, weights = int(saved["step"]), {name: saved[name] for name in weights}
    weights = {
        name: jax.make_array_from_process_local_data(everywhere, np.asarray(value, np.float32))
        for name, value in weights.items()
    }
    journal = Journal(rank, world)
    generator = np.random.default_rng([step, rank])
    while True:
        x = generator.normal(size=(64, 32)).astype(np.float32)
        y = np.tanh(x.sum(axis=1, keepdims=True))
        weights = train(weights, *(jax.make_array_from_process_local_data(split, each) for each in (x, y)))
        jax.block_until_ready(weights)
        step += 1
        journal.step(step)
        if step % EVERY == 0 and rank == 0:
            np.savez(FILE + ".part.npz", step=step, **{name: np.asarray(value) for name, value in weights.items()})
            os.replace(FILE + ".part.npz", FILE)
        time.sleep(PAUSE)


main()
