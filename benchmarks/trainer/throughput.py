"""Milliseconds a step: the Trainer and the strategies from scratch beside bare torch loops, interleaved in one group."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks.trainer.group import Rows
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.source import TensorData
from dtj_trainer.examples import gpt
from dtj_trainer.optim import OptimizerConfig
from dtj_trainer.state import State, StateConfig
from dtj_trainer.strategies import DdpConfig, DdpScratchConfig, FsdpConfig, FsdpScratchConfig, StrategyConfig, blocks
from dtj_trainer.trainer import Trainer

STEPS = 40
WARMUP = 3
BATCH = 8
BLOCK = 64


def model() -> nn.Module:
    """0.8 M parameters: a step of some tens of milliseconds on one core, so that overheads show."""
    torch.manual_seed(0)
    return gpt.Gpt(gpt.GptConfig(block=BLOCK, layers=4, heads=4, width=128))


def data() -> TensorData:
    """Random tokens in memory."""
    drawn = torch.randint(0, gpt.VOCABULARY, (512, BLOCK + 1), generator=torch.Generator().manual_seed(0))
    return TensorData(drawn[:, :-1], drawn[:, 1:])


class Clock:
    """Milliseconds a step between the end of the warm-up and the last step."""

    def __init__(self) -> None:
        self.started = 0.0
        self.milliseconds = 0.0

    def after_step(self, step: int) -> None:
        """Call after each step, from 0."""
        if step + 1 == WARMUP:
            self.started = time.perf_counter()
        if step + 1 == WARMUP + STEPS:
            self.milliseconds = (time.perf_counter() - self.started) / STEPS * 1000


def bare(wrap: Callable[[nn.Module], nn.Module], trainer: Trainer) -> float:
    """The loop as one writes it with torch alone."""
    wrapped = wrap(model())
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    samples, clock, mine = data(), Clock(), BATCH // trainer.group.world_size
    for step in range(WARMUP + STEPS):
        start = (step * BATCH + trainer.group.rank * mine) % 500
        loss = gpt.loss(wrapped, samples.get_batch(range(start, start + mine)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clock.after_step(step)
    return clock.milliseconds


def ours(strategy: StrategyConfig, trainer: Trainer) -> float:
    """The same by the Trainer, with its defaults: logging every 10 steps, meters, agreement, progress."""
    trainer.config = TrainerConfig(
        steps=WARMUP + STEPS,
        global_batch_size=BATCH,
        shuffle=False,
        optimizer=OptimizerConfig(),
        strategy=strategy,
        state=StateConfig(),
    )
    clock = Clock()
    trainer.fit(model(), data(), loss=gpt.loss, after_step=clock.after_step)
    return clock.milliseconds


def three_lines(trainer: Trainer) -> float:
    """The bare loop with State's three lines in it."""
    wrapped = DistributedDataParallel(model())
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    samples, clock, mine = data(), Clock(), BATCH // trainer.group.world_size
    state = State.attach(StateConfig(), trainer.env, trainer.group, model=wrapped, optimizer=optimizer)
    for step in state.steps(WARMUP + STEPS):
        start = (step * BATCH + trainer.group.rank * mine) % 500
        loss = gpt.loss(wrapped, samples.get_batch(range(start, start + mine)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state.report(loss=loss, samples=BATCH)
        clock.after_step(step)
    return clock.milliseconds


def sharded(model: nn.Module) -> nn.Module:
    """fully_shard as its own documentation does it."""
    for block in blocks(model):
        fully_shard(block)
    fully_shard(model)
    return model


ARMS: dict[str, Callable[[Trainer], float]] = {
    "bare DDP loop": lambda t: bare(DistributedDataParallel, t),
    "State in that loop": three_lines,
    "Trainer, ddp": lambda t: ours(DdpConfig(), t),
    "Trainer, ddp_scratch": lambda t: ours(DdpScratchConfig(), t),
    "bare fully_shard loop": lambda t: bare(sharded, t),
    "Trainer, fsdp": lambda t: ours(FsdpConfig(), t),
    "Trainer, fsdp_scratch": lambda t: ours(FsdpScratchConfig(), t),
}


def measure(trials: int) -> Rows:
    """Every arm once a trial, in an order that turns, so that a busy moment of the machine hits all alike."""
    trainer = Trainer(TrainerConfig(steps=1))
    rows: Rows = {name: [] for name in ARMS}
    names = list(ARMS)
    for trial in range(trials + 1):
        for name in names[trial % len(names) :] + names[: trial % len(names)]:
            took = ARMS[name](trainer)
            if trial:  # the first one is for caches
                rows[name].append(took)
    trainer.close()
    return rows


def overhead(trials: int) -> Rows:
    """What the Trainer spends in telling (meter, records, progress, agreement), in per cent of the step's time.

    CPU time is the cost. Wall time also has the wait for the slower rank, which the step's own all-reduce would have had.
    """
    trainer = Trainer(TrainerConfig(steps=1))
    rows: Rows = {"CPU time": [], "wall time": []}
    spent = cpu = 0.0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **kwargs: Any) -> Any:
            nonlocal spent, cpu
            started, began = time.perf_counter(), time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent += time.perf_counter() - started
                cpu += time.thread_time() - began

        return inner

    from dtj_trainer.telemetry.meter import Meter

    kept = State._after_step, State.report, Meter.close_window
    State._after_step, State.report, Meter.close_window = map(counted, kept)  # type: ignore[method-assign]
    for _ in range(trials):
        spent = cpu = 0.0
        started = time.perf_counter()
        ours(DdpConfig(), trainer)
        took = time.perf_counter() - started
        rows["wall time"].append(100 * spent / took)
        rows["CPU time"].append(100 * cpu / took)
    State._after_step, State.report, Meter.close_window = kept  # type: ignore[method-assign]
    trainer.close()
    return rows
