"""A TensorFlow training as people write it: nothing is caught, and of ours only what the tests need is imported.

tensorflow_script.py manager | mirrored FOLDER

Makes STEPS steps of a custom loop, saves with a CheckpointManager, and resumes from the newest checkpoint. Rank 0
writes the result to FOLDER/result.json. `manager`: under MultiWorkerMirroredStrategy. `mirrored`: one process, under
MirroredStrategy with two processors that stand for the GPUs of a pod.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import ahead
import marks
import numpy as np
import tensorflow as tf

STEPS, EVERY = 24, 4


def rows(step: int, rank: int) -> tuple[Any, Any]:
    """Returns this worker's two rows of the step."""
    generator = np.random.default_rng([step, rank])
    x = generator.normal(size=(2, 8)).astype(np.float32)
    return tf.constant(x), tf.constant(np.tanh(x.sum(axis=1, keepdims=True)))


def mirrored() -> Any:
    (processors,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(processors, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def main(kind: str, folder: Path) -> None:
    strategy = mirrored() if kind == "mirrored" else tf.distribute.MultiWorkerMirroredStrategy()
    rank, world = int(os.environ["RANK"]), strategy.num_replicas_in_sync
    if kind != "mirrored":
        assert (strategy.cluster_resolver.task_id, world) == (rank, int(os.environ["WORLD_SIZE"]))
    with strategy.scope():
        generator = np.random.default_rng(7)
        first = tf.Variable(generator.normal(size=(8, 16)).astype(np.float32))
        second = tf.Variable(generator.normal(size=(16, 1)).astype(np.float32))
        step = tf.Variable(0, dtype=tf.int64)

    @tf.function
    def train(x: Any, y: Any) -> Any:
        def replica(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.matmul(tf.tanh(tf.matmul(x, first)), second) - y) ** 2) / world
            context = tf.distribute.get_replica_context()
            gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, tape.gradient(loss, [first, second]))
            first.assign_sub(0.1 * gradients[0])
            second.assign_sub(0.1 * gradients[1])
            return loss

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica, args=(x, y)), axis=None)

    # Every worker takes part in a save. Only worker 0's is the one to load.
    where = folder / "checkpoints" if rank == 0 else Path(f"/tmp/dtj-tf-{os.getpid()}")
    checkpoint = tf.train.Checkpoint(first=first, second=second, step=step)
    manager = tf.train.CheckpointManager(checkpoint, str(where), max_to_keep=2)
    newest = tf.train.latest_checkpoint(str(folder / "checkpoints"))
    if newest is not None:
        checkpoint.restore(newest).assert_consumed()
    done = resumed = int(step.numpy())
    value = None
    marks.begin(rank, world)
    while done < STEPS:
        value = train(*rows(done, rank))
        done += 1
        step.assign(done)
        if done % EVERY == 0:
            manager.save(checkpoint_number=done)
        print(f"step {done} loss {float(value):.6f}", flush=True)
        marks.after_step(done, rank)
        marks.maybe_die(done, rank)
    if rank == 0:
        total = sum(float(each.numpy().astype(np.float64).sum()) for each in (first, second))
        found = {"step": done, "sum": total, "loss": float(value), "resumed": resumed, "world": world}
        (folder / "result.json").write_text(json.dumps({**found, "ahead": ahead.FOUND}))


main(sys.argv[1], Path(sys.argv[2]))
