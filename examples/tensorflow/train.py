"""A custom loop under MultiWorkerMirroredStrategy, which resumes from its newest checkpoint.

TensorFlow reads TF_CONFIG by itself. Of this project, only the three calls of `rank` are used.
"""

import sys

import numpy as np
import tensorflow as tf

from dtj_trainer import rank


def main(steps: int = 200) -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    worker = strategy.cluster_resolver.task_id
    with strategy.scope():
        generator = np.random.default_rng(7)
        first = tf.Variable((generator.normal(size=(8, 32)) / 3).astype(np.float32))
        second = tf.Variable((generator.normal(size=(32, 1)) / 6).astype(np.float32))
    weights = {"first": first, "second": second}

    @tf.function
    def train(x, y):
        def replica(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.matmul(tf.tanh(tf.matmul(x, first)), second) - y) ** 2)
            gradients = tape.gradient(loss, [first, second])
            context = tf.distribute.get_replica_context()
            means = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
            for weight, gradient in zip((first, second), means, strict=True):
                weight.assign_sub(0.05 * gradient)
            return loss

        return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(replica, args=(x, y)), axis=None)

    start = 0
    if found := rank.newest():
        start, folder = found
        with np.load(folder / "weights.npz") as saved:
            for name, weight in weights.items():
                weight.assign(saved[name])

    def write(folder):
        np.savez(folder / "weights.npz", **{name: weight.numpy() for name, weight in weights.items()})

    for step in range(start + 1, steps + 1):
        generator = np.random.default_rng([step, worker])
        x = generator.normal(size=(32, 8)).astype(np.float32)
        loss = train(tf.constant(x), tf.constant(np.tanh(x.sum(axis=1, keepdims=True))))
        rank.report(step, total=steps, loss=loss)
        rank.save(step, write, last=step == steps)
    if worker == 0:
        print(f"final step={steps} resumed={start} world={strategy.num_replicas_in_sync}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
