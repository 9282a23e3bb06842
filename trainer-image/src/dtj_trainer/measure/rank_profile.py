"""The profile of one rank: real steps of a task without other ranks, timed by section and by gradient."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from dtj_trainer.communication import CommunicationConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.loader import batches
from dtj_trainer.data.nested import to_device
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.errors import ConfigError
from dtj_trainer.measure.marks import Clock, clock_of
from dtj_trainer.prepare import prepare
from dtj_trainer.run import MicroBatches, Run
from dtj_trainer.strategies import DdpConfig
from dtj_trainer.task import Task
from dtj_trainer.telemetry.sinks import TelemetryConfig
from dtj_trainer.trainer import Trainer

VERSION = 1
"""Of the file; `dtj simulate` reads it."""
SETTLING_STEPS = 10
"""The first steps allocate and compile."""
SECTIONS = ("data", "forward", "backward", "optimizer")
QUARTILES = 1.349
"""Standard deviations between the quartiles of a normal distribution."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankProfile:
    """The fields of profile.json."""

    samples: int
    """Samples of the step."""
    seconds: dict[str, float]
    """The median of each section."""
    spread_seconds: float
    """Standard deviation of a whole step, from its quartiles: one disturbed step does not count."""
    gradients: list[tuple[int, float]]
    """(bytes, seconds since the last backward pass began) by parameter, in the order of that pass."""
    bucket_bytes: int
    micro_batches: int
    measured: str
    """The day, the device, torch."""

    def document(self) -> dict[str, Any]:
        """Returns the content of profile.json."""
        return {"version": VERSION} | {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class _Times:
    """The marks of one step."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SECTIONS, 0.0))
    ready: dict[nn.Parameter, float] = field(default_factory=dict)


def measure_rank(task: Task, config: TrainerConfig, *, steps: int) -> RankProfile:
    """Takes `steps` steps of a task as the only rank, and times them.

    The strategy is left out: the model is the plain one, whose gradients no rank waits for. Gradients count
    in fp32 or as the parameters are, as DistributedDataParallel sends them. Nothing is saved or logged.

    Raises ConfigError if there are other ranks, or for a field that can't work.

    Args:
        task: What is trained on what.
        config: The run's config. `global_batch_size` is the batch of this one rank.
        steps: The steps that are timed, after some that settle.
    """
    if steps < 2:
        raise ConfigError(f"--timed-steps {steps}: write 2 or more")
    if (world := WorkerEnv.read().world_size) > 1:
        raise ConfigError(f"WORLD_SIZE={world}: a profile is that of one rank; start it without torchrun")
    bucket_mb = getattr(config.strategy, "bucket_cap_mb", DdpConfig().bucket_cap_mb)
    alone = replace(
        config, strategy=DdpConfig(), communication=CommunicationConfig(), telemetry=TelemetryConfig(), early_stop=None
    )
    env = WorkerEnv()  # without an agent and without a checkpoint folder
    with Trainer(alone, env) as trainer:
        run = prepare(task, alone, trainer.group, env)
        clock = clock_of(trainer.group.device)
        ready = batches(run.data, run.order, run.partition, alone.data, seed=alone.seed)
        for _ in range(SETTLING_STEPS):
            _step(run, ready, clock)
        times = [_step(run, ready, clock) for _ in range(steps)]
        device = trainer.group.device
        micro_batches = len(run.partition.micro_batches())
    seconds = {name: statistics.median(one.seconds[name] for one in times) for name in SECTIONS}
    low, _, high = statistics.quantiles([sum(one.seconds.values()) for one in times], n=4, method="inclusive")
    return RankProfile(
        samples=config.global_batch_size,
        seconds=seconds,
        spread_seconds=(high - low) / QUARTILES,
        gradients=_gradients(times),
        bucket_bytes=int(bucket_mb * 1024 * 1024),
        micro_batches=micro_batches,
        measured=_circumstances(device),
    )


def _step(run: Run, ready: Iterator[MicroBatches], clock: Clock) -> _Times:
    """Takes one step as `Run.train_step` does, and reads its marks at the end."""
    times = _Times()
    spans: list[tuple[str, Any, Any]] = []
    marks: dict[nn.Parameter, Any] = {}
    clock.wait()
    began = clock.mark()
    micro_batches = next(ready)
    spans.append(("data", began, clock.mark()))
    last_backward = spans[-1][2]
    for number, (batch, samples) in enumerate(micro_batches):
        start = clock.mark()
        with run.precision.autocast():
            value = run.loss(run.model, to_device(batch, run.group.device))
        last_backward = clock.mark()
        last = number + 1 == len(micro_batches)
        with _marked(run.model, marks, clock) if last else _unmarked():
            torch.autograd.backward(value * (samples / run.order.size * run.precision.loss_scale))
        spans += [("forward", start, last_backward), ("backward", last_backward, clock.mark())]
    start = clock.mark()
    if run.precision.unscale(run.model, run.optimizer):
        if run.config.clip_norm:
            run.strategy.clip(run.model, run.config.clip_norm)
        run.optimizer.step()
        if run.ema:
            run.ema.update()
    run.strategy.zero_grad(run.model, run.optimizer)
    run.order.advance()
    spans.append(("optimizer", start, clock.mark()))
    clock.wait()
    for name, first, second in spans:
        times.seconds[name] += clock.seconds(first, second)
    times.ready = {parameter: clock.seconds(last_backward, mark) for parameter, mark in marks.items()}
    return times


@contextmanager
def _marked(model: nn.Module, marks: dict[nn.Parameter, Any], clock: Clock) -> Iterator[None]:
    """Marks when each gradient of the model is ready."""

    def ready(parameter: torch.Tensor) -> None:
        marks[parameter] = clock.mark()  # type: ignore[index]

    trained = [p for p in model.parameters() if p.requires_grad]
    hooks = [p.register_post_accumulate_grad_hook(ready) for p in trained]  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _unmarked() -> Iterator[None]:
    yield


def _gradients(times: list[_Times]) -> list[tuple[int, float]]:
    """Returns bytes and the median time of each gradient, in the order in which most passes finish them."""
    found: dict[nn.Parameter, list[float]] = {}
    for one in times:
        for parameter, seconds in one.ready.items():
            found.setdefault(parameter, []).append(seconds)
    sizes = [(p.numel() * p.element_size(), statistics.median(values)) for p, values in found.items()]
    return sorted(sizes, key=lambda pair: pair[1])


def _circumstances(device: torch.device) -> str:
    what = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return f"{time.strftime('%Y-%m-%d', time.gmtime())}, {what}, torch {torch.__version__}"
