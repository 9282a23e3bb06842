"""Steps of TensorFlow under MultiWorkerMirroredStrategy: matrices and pauses, as benchmarks/simulation/work.py has."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import scaling_steps as scaling
import tensorflow as tf

from benchmarks.simulation.sizes import BACKWARD, BUCKET_MB, FORWARD, LAYERS, SAMPLES, WIDTH


def waited(seconds: float, x: Any) -> Any:
    """Returns x after a pause."""

    def wait(value: Any) -> Any:
        time.sleep(seconds)
        return value

    return tf.ensure_shape(tf.numpy_function(wait, [x], x.dtype), x.shape)


@tf.custom_gradient
def pause(x: Any) -> Any:
    """Returns x after the forward's pause, and the gradient's function, which pauses too."""
    return waited(FORWARD, x), lambda gradient: waited(BACKWARD, gradient)


def main() -> None:
    """Times this rank."""
    scaling.pin(scaling.own_node())
    # A pause occupies a thread, and gradients are sent meanwhile.
    tf.config.threading.set_inter_op_parallelism_threads(4)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=int(BUCKET_MB * 1024 * 1024))
    generator = np.random.default_rng(7)
    shapes = [(WIDTH, WIDTH), (1, WIDTH)] * LAYERS
    with strategy.scope():
        weights = [tf.Variable(generator.normal(0, WIDTH**-0.5, shape).astype(np.float32)) for shape in shapes]
    x = tf.ones((SAMPLES, WIDTH))

    def all_reduce(values: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values, options)

    @tf.function(autograph=False)
    def step() -> Any:
        def replica() -> Any:
            with tf.GradientTape() as tape:
                out = x
                for matrix, bias in zip(weights[::2], weights[1::2], strict=True):
                    out = pause(tf.matmul(out, matrix) + bias)
                loss = tf.reduce_mean(out**2) / strategy.num_replicas_in_sync
            for variable, gradient in zip(weights, all_reduce(tape.gradient(loss, weights)), strict=True):
                variable.assign_sub(1e-4 * gradient)
            return loss

        return strategy.run(replica)

    @tf.function(autograph=False)
    def reduced(value: Any) -> Any:
        # A collective needs the device of its input, and the argument of a function has none.
        return strategy.run(lambda: all_reduce(tf.identity(value)))

    buffers = {size: tf.zeros(size // 4) for size in scaling.SIZES}
    rank = strategy.cluster_resolver.task_id
    scaling.measure(rank, lambda: step().numpy(), lambda size: reduced(buffers[size]).numpy())


main()
