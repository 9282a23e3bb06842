"""A TensorFlow training: a custom loop under MultiWorkerMirroredStrategy, with a CheckpointManager."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import tensorflow as tf
from journal import EVERY, PAUSE, Journal, folder


def main() -> None:
    """Trains until the process is killed."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    rank, world = strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync
    generator = np.random.default_rng(7)
    with strategy.scope():
        first = tf.Variable(generator.normal(size=(32, 64)).astype(np.float32))
        second = tf.Variable(generator.normal(size=(64, 1)).astype(np.float32))
        counter = tf.Variable(0, dtype=tf.int64)

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
    where = f"{folder()}/{rank}"
    checkpoint = tf.train.Checkpoint(first=first, second=second, step=counter)
    manager = tf.train.CheckpointManager(checkpoint, where, max_to_keep=2)
    if (newest := tf.train.latest_checkpoint(f"{folder()}/0")) is not None:
        checkpoint.restore(newest).assert_consumed()
    step = int(counter.numpy())
    journal = Journal(rank, world)
    generator = np.random.default_rng([step, rank])
    while True:
        x = generator.normal(size=(64, 32)).astype(np.float32)
        train(tf.constant(x), tf.constant(np.tanh(x.sum(axis=1, keepdims=True)))).numpy()
        step += 1
        journal.step(step)
        counter.assign(step)
        if step % EVERY == 0:
            manager.save(checkpoint_number=step)
        time.sleep(PAUSE)


# TensorFlow logs a line for each of its fallbacks otherwise.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
main()
