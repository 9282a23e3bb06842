"""A JAX training as people write it: nothing is caught, and of ours only what the tests need is imported.

jax_script.py {orbax|npz} FOLDER

Makes STEPS steps with the batch split over all processes, saves with orbax or as one .npz file, and
resumes from the newest checkpoint. Rank 0 writes the losses and the weights' sum to FOLDER/result.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import ahead
import jax
import jax.numpy as jnp
import marks
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

STEPS, EVERY = 24, 4


def rows(step: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns this process's two rows of the step."""
    generator = np.random.default_rng([step, jax.process_index()])
    x = generator.normal(size=(2, 8)).astype(np.float32)
    return x, np.tanh(x.sum(axis=1, keepdims=True))


class Npz:
    """The checkpoint that a small script writes by itself: rank 0 writes, all read."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "checkpoint.npz"

    def load(self, weights: Any) -> tuple[int, Any]:
        if not self.file.exists():
            return 0, weights
        with np.load(self.file) as saved:
            return int(saved["step"]), {name: saved[name] for name in weights}

    def save(self, step: int, weights: Any) -> None:
        if jax.process_index() == 0:
            part = self.file.with_suffix(".part.npz")
            np.savez(part, step=step, **{name: np.asarray(value) for name, value in weights.items()})
            part.replace(self.file)


class Orbax:
    """orbax's manager, in which all processes take part."""

    def __init__(self, folder: Path) -> None:
        import orbax.checkpoint as ocp

        self.args = ocp.args
        options = ocp.CheckpointManagerOptions(max_to_keep=2)
        self.manager = ocp.CheckpointManager(folder.absolute() / "orbax", options=options)

    def load(self, weights: Any) -> tuple[int, Any]:
        step = self.manager.latest_step()
        if step is None:
            return 0, weights
        return step, self.manager.restore(step, args=self.args.StandardRestore(weights))

    def save(self, step: int, weights: Any) -> None:
        self.manager.save(step, args=self.args.StandardSave(weights))
        self.manager.wait_until_finished()


def main(kind: str, folder: Path) -> None:
    jax.distributed.initialize()
    assert jax.process_count() == int(os.environ["WORLD_SIZE"])
    assert jax.process_index() == int(os.environ["RANK"])
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    everywhere, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))

    @jax.jit
    def train(weights: Any, x: Any, y: Any) -> tuple[Any, Any]:
        def loss(weights: Any) -> Any:
            return jnp.mean((jnp.tanh(x @ weights["first"]) @ weights["second"] - y) ** 2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return value, jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, weights, gradients)

    first, second = jax.random.split(jax.random.key(7))
    weights = {"first": jax.random.normal(first, (8, 16)), "second": jax.random.normal(second, (16, 1))}
    weights = jax.tree.map(lambda value: jax.make_array_from_process_local_data(everywhere, np.asarray(value)), weights)
    checkpoint = Npz(folder) if kind == "npz" else Orbax(folder)
    step, weights = checkpoint.load(weights)
    weights = jax.tree.map(lambda value: jax.make_array_from_process_local_data(everywhere, np.asarray(value)), weights)
    resumed, value = step, jnp.nan
    marks.begin(jax.process_index(), jax.process_count())
    while step < STEPS:
        x, y = (jax.make_array_from_process_local_data(split, each) for each in rows(step))
        value, weights = train(weights, x, y)
        step += 1
        if step % EVERY == 0:
            checkpoint.save(step, weights)
        print(f"step {step} loss {float(value):.6f}", flush=True)
        marks.after_step(step, jax.process_index())
        marks.maybe_die(step, jax.process_index())
    if jax.process_index() == 0:
        total = sum(float(np.asarray(each, np.float64).sum()) for each in weights.values())
        found = {"step": step, "sum": total, "loss": float(value), "resumed": resumed, "world": jax.process_count()}
        (folder / "result.json").write_text(json.dumps({**found, "ahead": ahead.FOUND}))


main(sys.argv[1], Path(sys.argv[2]))
