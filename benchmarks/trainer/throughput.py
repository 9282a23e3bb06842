"""Step time of the Trainer, the strategies from scratch and bare torch loops, interleaved in one group."""

from __future__ import annotations

import contextlib
import gc
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from benchmarks.trainer.arms import ARMS, BARE_DDP, installed
from benchmarks.trainer.group import Rows
from benchmarks.trainer.workloads import GPT, MLP
from dtj_trainer.config import TrainerConfig
from dtj_trainer.distributed.comm_timer import CommTimer
from dtj_trainer.measure.bench.workloads import Workload, same_losses
from dtj_trainer.state import State, StateConfig
from dtj_trainer.strategies import DdpConfig, StrategyConfig
from dtj_trainer.strategies.ddp import Ddp
from dtj_trainer.trainer import Trainer

WORKLOADS = {"gpt": GPT, "mlp": MLP}


def turn(names: list[str], trial: int) -> list[str]:
    """Returns the order of a trial: each trial begins at another arm, and every second one is reversed."""
    at = trial % len(names)
    order = names[at:] + names[:at]
    return order[::-1] if trial % 2 else order


def measure(trials: int, workload: str) -> Rows:
    """Runs every arm once per trial, so that a busy moment affects all alike. Raises RuntimeError if losses differ."""
    trainer = Trainer(TrainerConfig(steps=1))
    rows = measure_in(trainer, trials, WORKLOADS[workload])
    trainer.close()
    return rows


def measure_in(trainer: Trainer, trials: int, workload: Workload) -> Rows:
    """Runs the arms like `measure`, in an existing group."""
    rows: Rows = {name: [] for name in installed()}
    wanted: torch.Tensor | None = None
    for trial in range(trials + 1):
        for name in turn(list(rows), trial) if trial else list(rows):
            # Otherwise this arm would pay for the garbage of the previous one.
            gc.collect()
            dist.barrier()
            run = ARMS[name](trainer, workload)
            losses = run.losses()
            if name == BARE_DDP and wanted is None:
                wanted = losses
            assert wanted is not None  # the bare loop runs first
            same_losses(name, losses, wanted)
            if trial:  # the first trial fills caches
                rows[name].append(run.milliseconds)
            del run
    return rows


BLOCK = 10
"""Steps; the Trainer reports that often by default."""
PAIRS = 10
"""Pairs of blocks in a trial."""


def overhead(trials: int, strategy: StrategyConfig | None = None) -> Rows:
    """Measures the cost of reporting (meters, records, progress to an agent), in per cent of a step without reports.

    In one training run, every second block of steps is reported. A busy moment thus affects both kinds alike. The wait
    for a slower rank, in our gather or in the next all-reduce, is in both kinds too: no function is timed by itself.
    """
    trainer = Trainer(TrainerConfig(steps=1))
    rows: Rows = {"CPU time": [], "wall time": []}
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(f"{folder}/agent")
        agent.setblocking(False)
        trainer.env = replace(trainer.env, agent_socket=Path(folder, "agent"))
        for _ in range(trials):
            for name, per_cent in zip(rows, _on_and_off(trainer, strategy or DdpConfig(), agent), strict=True):
                rows[name].append(per_cent)
    trainer.close()
    return rows


def _on_and_off(trainer: Trainer, strategy: StrategyConfig, agent: socket.socket) -> tuple[float, float]:
    """Returns by how many per cent (CPU, wall) the median reported block is longer, as the mean over all ranks."""
    blocks: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    reporting, before = True, (0.0, 0.0)

    def after_step(step: int) -> None:
        nonlocal reporting, before
        if step % BLOCK:
            return
        now = time.process_time(), time.perf_counter()
        if step >= 2 * BLOCK:  # the first blocks fill caches
            blocks[reporting].append((now[0] - before[0], now[1] - before[1]))
        reporting = not reporting
        with contextlib.suppress(BlockingIOError):
            while agent.recv(65536):
                pass
        before = time.process_time(), time.perf_counter()

    def only(kept: Callable[..., Any], instead: Any = None) -> Callable[..., Any]:
        return lambda *args, **kwargs: kept(*args, **kwargs) if reporting else instead

    will_log = State.will_log.fget
    assert will_log is not None
    changed: list[tuple[type, str, Any]] = [
        (State, "will_log", property(only(will_log, False))),
        (State, "_log", only(State._log)),
        (Ddp, "finish", only(Ddp.finish)),
    ]
    changed.append((CommTimer, "counting", only(CommTimer.counting, contextlib.nullcontext())))
    config = TrainerConfig(
        steps=(2 * PAIRS + 2) * BLOCK + 1,
        global_batch_size=GPT.batch,
        shuffle=False,
        strategy=strategy,
        state=StateConfig(log_every_steps=BLOCK),
    )
    trainer.config = config
    with contextlib.ExitStack() as stack:
        for owner, name, value in changed:
            stack.enter_context(mock.patch.object(owner, name, value))
        trainer.fit(GPT.model(), GPT.data(), loss=GPT.loss, after_step=after_step)
    medians = {on: [statistics.median(column) for column in zip(*times, strict=True)] for on, times in blocks.items()}
    added = [100 * (on / off - 1) for on, off in zip(medians[True], medians[False], strict=True)]
    cpu, wall = trainer.group.gather(torch.tensor(added)).mean(0).tolist()
    return cpu, wall
