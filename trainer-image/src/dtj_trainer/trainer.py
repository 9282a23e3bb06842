"""The whole loop: `Trainer(config).fit(model, data, loss=...)`.

It is the loop that a user of `State` would write, with strategy, precision, accumulation, schedule and validation in it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import nn

from dtj_trainer import batch_size, mismatch, schedule, strategies
from dtj_trainer.checkpoint import rng
from dtj_trainer.comm.group import Group
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.loader import Cut, LoaderConfig, StreamData, StreamOrder, batches
from dtj_trainer.data.nested import first, to_device
from dtj_trainer.data.order import DataOrder, edges
from dtj_trainer.data.source import BatchDataset, MapDataset, in_order
from dtj_trainer.early_stop import EarlyStop
from dtj_trainer.ema import Ema
from dtj_trainer.env import WorkerEnv
from dtj_trainer.errors import ConfigError
from dtj_trainer.memory import device_bytes
from dtj_trainer.optim import make_optimizer
from dtj_trainer.precision import Precision
from dtj_trainer.recompute import recompute
from dtj_trainer.state import State
from dtj_trainer.strategies import StrategyConfig
from dtj_trainer.telemetry.meter import Meter
from dtj_trainer.telemetry.profile import Window
from dtj_trainer.telemetry.record import Sink
from dtj_trainer.telemetry.sinks import Background, Mlflow, TensorBoard

log = logging.getLogger(__name__)
Data = MapDataset | BatchDataset
Loss = Callable[[nn.Module, Any], torch.Tensor]
"""(model, batch) -> mean loss over the batch."""
Measure = Callable[[nn.Module, Any], Mapping[str, torch.Tensor]]
"""(model, batch) -> means over the batch, by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How a run ended."""

    step: int
    loss: float | None
    """Mean loss of the last step over all ranks; None if this attempt had no step left to do."""
    validation: dict[str, float]


class Trainer:
    """Trains one model on one group of ranks, and goes on where the newest checkpoint stands."""

    def __init__(self, config: TrainerConfig, env: WorkerEnv | None = None) -> None:
        """Joins the group. Raises RankMismatch if the ranks were started differently."""
        self.config = config
        self.env = env or WorkerEnv.read()
        self.on_start: Callable[[State], None] | None = None
        """Called once by `fit`, after the load and before the first step."""
        if config.cpu_threads:
            torch.set_num_threads(config.cpu_threads)
        self.group = Group.open(self.env, timeout=timedelta(seconds=config.state.collective_timeout_seconds))
        mismatch.check(mismatch.facts(config, self.group), self.group)

    def fit(
        self,
        model: nn.Module,
        data: Data | StreamData,
        *,
        loss: Loss,
        validation: Data | None = None,
        measure: Measure | None = None,
        after_step: Callable[[int], None] | None = None,
        sinks: Sequence[Sink] = (),
        flops_per_sample: float | None = None,
        tokens_per_sample: int | None = None,
    ) -> Result:
        """Runs to the end. Raises Stopped after SIGTERM.

        `after_step(step)`: the caller's own word in the loop. `sinks`: further places for rank 0's records. With
        `tokens_per_sample` and `flops_per_sample` (forward and backward) tokens/s and MFU are told.
        """
        config, group = self.config, self.group
        order, total = self._order(data)
        edges(config.global_batch_size, group.rank, group.world_size)  # too small a batch is said before anything is built
        precision = Precision(config.precision, group)
        recompute(strategies.blocks(model), config.recompute)
        micro = self._micro_batch_size(model, data, loss, precision)
        cut = Cut(
            global_batch_size=config.global_batch_size, rank=group.rank, world_size=group.world_size, micro_batch_size=micro
        )
        strategy = strategies.make(self._decide(model))
        wrapped = strategy.wrap(model, group)
        optimizer = make_optimizer(wrapped.parameters(), config.optimizer)
        scheduler = schedule.make_schedule(optimizer, config.schedule, total, config.global_batch_size)
        early = EarlyStop(config.early_stop) if config.early_stop else None
        ema = Ema(wrapped, config.ema_decay) if config.ema_decay else None
        optional = {"ema": ema, "early_stop": early}
        parts = {"model": wrapped, "optimizer": optimizer, "scheduler": scheduler, "data": order, "precision": precision}
        self.state = state = State.attach(
            config.state, self.env, group, **parts, **{k: v for k, v in optional.items() if v is not None}
        )
        state.on_start = partial(self._started, early)
        if group.rank == 0:
            state.sinks += [*self._trackers(), *sinks]
        meter = Meter(
            group, flops_per_sample=flops_per_sample, tokens_per_sample=tokens_per_sample, peak=config.telemetry.peak_flops
        )
        profile = Window(config.telemetry.profile, group.rank)
        evaluate = partial(self._validate, wrapped, ema, validation, measure)
        every = config.validate_every_steps or total
        ready = None
        mean_loss: float | None = None
        measured: dict[str, float] = {}

        for step in state.steps(total):
            if ready is None:  # only now does the order know where a checkpoint left it
                ready = batches(data, order, cut, config.data, seed=config.seed)
                wrapped.train()
            profile.before(step)
            with meter.part("data"):
                parts_of_step = next(ready)
            metrics: dict[str, torch.Tensor | float] = {"epoch": order.epoch, "lr": scheduler.get_last_lr()[0]}
            with meter.part("compute"):
                local = self._forward_backward(strategy, wrapped, parts_of_step, loss, precision)
                if precision.unscale(optimizer):
                    if config.clip_norm:
                        metrics["grad_norm"] = strategy.clip(wrapped, config.clip_norm)
                    optimizer.step()
                    if ema:
                        ema.update()
                strategy.zero_grad(wrapped, optimizer)
            scheduler.step()
            order.advance()
            meter.step_done()
            if (step + 1) % every == 0 or step + 1 == total:
                measured = evaluate()
                if early and measured:
                    early.validated(measured)
                    if early.over:
                        state.end()
            window = None
            if state.due:
                meter.add("checkpoint", state.take_stall())
                window = meter.close_window(float(local), strategy.communication(wrapped), config.global_batch_size)
                mean_loss = window.loss
                metrics |= {f"validation_{k}": v for k, v in measured.items()} | window.metrics
                if precision.config.dtype == "fp16":
                    metrics["loss_scale"] = precision.loss_scale
            state.report(
                loss=mean_loss, samples=config.global_batch_size, per_rank=window.per_rank if window else None, **metrics
            )
            if after_step:
                after_step(step)
        profile.close(state.step)
        return Result(step=state.step, loss=mean_loss, validation=measured or evaluate())

    # --- before the first step ---------------------------------------------------------------------------------------

    def _started(self, early: EarlyStop | None, state: State) -> None:
        if early and early.over:  # it had ended, and was started again
            state.total = state.step
        if self.on_start:
            self.on_start(state)

    def _order(self, data: Data | StreamData) -> tuple[DataOrder | StreamOrder, int]:
        """The order of samples, and the number of steps."""
        config = self.config
        if isinstance(data, StreamData):
            if config.steps is None:
                raise ConfigError("a stream has no epochs: write steps")
            return StreamOrder(global_batch_size=config.global_batch_size), config.steps
        order = DataOrder(length=len(data), global_batch_size=config.global_batch_size, seed=config.seed, shuffle=config.shuffle)
        total = config.steps if config.steps is not None else order.steps_for(config.epochs or 0)
        if total < 1:
            raise ConfigError(f"epochs={config.epochs} is less than one step of global_batch_size={config.global_batch_size}")
        return order, total

    def _decide(self, model: nn.Module) -> StrategyConfig:
        """The strategy's config; `auto` is decided by the smallest device of the group, and says why."""
        wanted, group = self.config.strategy, self.group
        if not isinstance(wanted, strategies.AutoConfig):
            return wanted
        smallest = group.gather(torch.tensor(device_bytes(group), dtype=torch.int64)).min()
        facts = strategies.Facts(
            parameters=sum(p.numel() for p in model.parameters()),
            parameter_bytes=strategies.tensor_bytes(model),
            optimizer_bytes_per_parameter=8 if self.config.optimizer.name == "adamw" else 4,
            device_bytes=int(smallest),
            world_size=group.world_size,
            local_world_size=group.local_world_size,
        )
        choice = strategies.choose(facts, wanted)
        if group.rank == 0:
            log.info("strategy %s", choice.why)
        return choice.config

    def _micro_batch_size(self, model: nn.Module, data: Data | StreamData, loss: Loss, precision: Precision) -> int | None:
        """As written, or for `auto` the largest that fits on every rank."""
        wanted, group = self.config.micro_batch_size, self.group
        if wanted != "auto":
            return wanted
        begin, end = edges(self.config.global_batch_size, group.rank, group.world_size)
        limit = end - begin
        whole = Cut(
            global_batch_size=self.config.global_batch_size, rank=group.rank, world_size=group.world_size, micro_batch_size=None
        )
        ((batch, _),) = next(batches(data, self._order(data)[0], whole, LoaderConfig(), seed=0))
        model = model.to(group.device)
        before = rng.capture(), {k: v.clone() for k, v in model.named_buffers()}
        per_parameter = 2 if self.config.optimizer.name == "adamw" else 1

        def attempt(n: int) -> None:
            # What will be there too by then, so that it is not found to be missing later: the optimizer's state.
            held = [torch.empty_like(p) for p in model.parameters() for _ in range(per_parameter)]
            with precision.autocast():
                value = loss(model, to_device(first(batch, n), group.device))
            torch.autograd.backward(value)
            model.zero_grad(set_to_none=True)
            del held

        largest = batch_size.with_headroom(batch_size.largest_that_fits(attempt, limit), limit)
        model.zero_grad(set_to_none=True)
        rng.restore(before[0])
        for name, buffer in model.named_buffers():
            buffer.copy_(before[1][name])
        smallest = int(group.gather(torch.tensor(largest)).min())
        if group.rank == 0:
            log.info("micro_batch_size auto: %d of a share of %d samples", smallest, limit)
        return smallest

    def _trackers(self) -> list[Sink]:
        config = self.config.telemetry
        out: list[Sink] = []
        if config.tensorboard:
            out.append(Background("TensorBoard", partial(TensorBoard, config.tensorboard)))
        if config.mlflow:
            job = self.env.job or "run"
            out.append(
                Background("MLflow", partial(Mlflow, config.mlflow, config.mlflow_experiment, job, mismatch.flat(self.config)))
            )
        return out

    # --- one step ----------------------------------------------------------------------------------------------------

    def _forward_backward(
        self,
        strategy: strategies.Strategy,
        model: nn.Module,
        parts: list[tuple[Any, int]],
        loss: Loss,
        precision: Precision,
    ) -> torch.Tensor:
        """Gradients of this rank's share in micro-batches; gives its part of the global mean loss."""
        group = self.group
        total = torch.zeros((), dtype=torch.float64)
        for number, (batch, samples) in enumerate(parts):
            # Ranks and micro-batches may differ in size by a sample: each sample weighs the same, so that the step is
            # the mean over the global batch however it was cut. The strategy takes the mean over ranks, hence the world.
            weight = samples / self.config.global_batch_size
            with strategy.accumulate(model, last=number + 1 == len(parts)):
                with precision.autocast():
                    value = loss(model, to_device(batch, group.device))
                torch.autograd.backward(value * (weight * group.world_size * precision.loss_scale))
            total += value.detach().to("cpu", torch.float64) * weight
        strategy.finish(model)
        return total

    def _validate(self, model: nn.Module, ema: Ema | None, data: Data | None, measure: Measure | None) -> dict[str, float]:
        if data is None or measure is None:
            return {}
        with ema.applied() if ema else nullcontext():
            return self.evaluate(model, data, measure)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: Data, measure: Measure) -> dict[str, float]:
        """Means of `measure` over a data set, each sample once, over all ranks."""
        model.eval()
        sums: dict[str, float] = {}
        count = 0
        size = self.config.micro_batch_size if isinstance(self.config.micro_batch_size, int) else 256
        for batch, n in in_order(data, size, self.group.rank, self.group.world_size):
            for name, value in measure(model, to_device(batch, self.group.device)).items():
                sums[name] = sums.get(name, 0.0) + float(value) * n
            count += n
        model.train()
        everyone: dict[str, float] = {}
        total = 0
        for part, n in self.group.all_objects((sums, count)):
            total += n
            for name, value in part.items():
                everyone[name] = everyone.get(name, 0.0) + value
        return {name: value / total for name, value in everyone.items()}

    def close(self) -> None:
        """Ends the groups. Use `with Trainer(config) as trainer` to have it called."""
        self.group.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # after an error peers may be gone, and an orderly goodbye would wait for them
            self.close()
