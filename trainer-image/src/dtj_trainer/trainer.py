"""The whole loop: `Trainer(config).fit(model, data, loss=...)`.

It is the loop that a user of `State` would write, with strategy, precision, accumulation, schedule and validation in it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from dtj_trainer import strategies
from dtj_trainer.auto_batch import micro_batch_size
from dtj_trainer.checkpoint import rng
from dtj_trainer.components import lr_schedule
from dtj_trainer.components.activation_checkpoint import checkpoint_activations
from dtj_trainer.components.batch_size import is_out_of_memory, out_of_memory
from dtj_trainer.components.compile import check_compiler, compile_forward
from dtj_trainer.components.early_stopping import EarlyStop
from dtj_trainer.components.ema import Ema
from dtj_trainer.components.optimizer import check_element_wise, make_optimizer
from dtj_trainer.components.precision import Precision
from dtj_trainer.components.validation import Measure, evaluate
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.loader import Cut, LoaderConfig, StreamData, StreamOrder, batches
from dtj_trainer.data.nested import to_device
from dtj_trainer.data.order import DataOrder, edges
from dtj_trainer.data.source import BatchDataset, MapDataset, check_data
from dtj_trainer.distributed import config_check
from dtj_trainer.distributed.buffer_broadcast import broadcast_buffers
from dtj_trainer.distributed.device_memory import device_bytes
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.errors import ConfigError
from dtj_trainer.state import State
from dtj_trainer.strategies import StrategyConfig
from dtj_trainer.telemetry.meter import Meter
from dtj_trainer.telemetry.profiler import Window
from dtj_trainer.telemetry.record import Sink
from dtj_trainer.telemetry.sinks import Background, Mlflow, TensorBoard

log = logging.getLogger(__name__)
SOMETIMES = {
    "grad_norm", "evaluation_seconds", "communication_seconds", "communication_share", "exposed_seconds", "overlap",
    "gpu_utilization",
}  # fmt: skip
"""Metrics that a step may lack: its gradients overflowed, or nothing was measured."""
Data = MapDataset | BatchDataset
Loss = Callable[[nn.Module, Any], torch.Tensor]
"""(model, batch) -> mean loss over the batch."""


def scalar(loss: Loss) -> Loss:
    """Returns a loss that raises ConfigError where the caller's gives anything but one number with a gradient."""

    def checked(model: nn.Module, batch: Any) -> torch.Tensor:
        value = loss(model, batch)
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            given = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
            raise ConfigError(f"loss gave {given}: return one number, the mean over the batch, such as loss.mean()")
        if not value.requires_grad:
            raise ConfigError("loss gave a number without gradient: compute it of the model's output, without detach or no_grad")
        return value.reshape(())

    return checked


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
        edges(config.global_batch_size, self.env.rank, self.env.world_size)  # too small a batch is said before anybody waits
        self.on_start: Callable[[State], None] | None = None
        """Called once by `fit`, after the load and before the first step."""
        if config.cpu_threads:
            torch.set_num_threads(config.cpu_threads)
        if config.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
            torch.use_deterministic_algorithms(True)
        if config.precision.matmul:
            torch.set_float32_matmul_precision(config.precision.matmul)
        check_compiler(config.compile, self.env.local_rank)
        self.group = Group.open(self.env, timeout=timedelta(seconds=config.state.collective_timeout_seconds))
        config_check.check(config_check.startup_facts(config, self.group, self.env, config.state.checkpoint), self.group)

    def fit(
        self,
        model: nn.Module,
        data: Data | StreamData,
        *,
        loss: Loss,
        validation: Data | None = None,
        measure: Measure | None = None,
        optimizer: Callable[[nn.Module], Optimizer] | None = None,
        after_step: Callable[[int], None] | None = None,
        sinks: Sequence[Sink] = (),
        flops_per_sample: float | None = None,
        tokens_per_sample: int | None = None,
    ) -> Result:
        """Runs to the end. Raises Stopped after SIGTERM.

        `optimizer(model)`: one of the caller's own instead of config.optimizer, made of the parameters of the model as the
        strategy has wrapped it (with fsdp_scratch those are flat shards). `after_step(step)`: the caller's own word in the
        loop. `sinks`: further places for rank 0's records. With `tokens_per_sample` and `flops_per_sample` (forward and
        backward) tokens/s and MFU are told.
        """
        config, group = self.config, self.group
        self._check(data, validation, measure)
        order, total = self._order(data)
        precision = Precision(config.precision, group)
        loss = scalar(loss)
        if not model.training:  # as a whole, as from_pretrained gives it; parts in eval() of a model in train() stay there
            model.train()
        decided = self._decide(model)
        if not isinstance(decided, strategies.FsdpConfig):
            strategies.check_not_meta(model, strategies.name_of(decided))
        found = self._blocks(model)
        micro = config.micro_batch_size
        if micro == "auto":
            share = self._first_share(data)
            micro = micro_batch_size(model, share, loss, config=config, strategy=decided, group=group, precision=precision)
        checkpoint_activations(found, config.recompute)
        compile_forward(model, config.compile, decided, config.blocks)
        cut = Cut(
            global_batch_size=config.global_batch_size, rank=group.rank, world_size=group.world_size, micro_batch_size=micro
        )
        strategy = strategies.make(decided, config.blocks)
        config_check.check(strategies.shapes(model), group)
        wrapped = strategy.wrap(model, group)
        trains = optimizer(wrapped) if optimizer else make_optimizer(wrapped, config.optimizer)
        if isinstance(decided, strategies.FsdpScratchConfig):
            check_element_wise(trains)
        scheduler = lr_schedule.make_schedule(trains, config.schedule, total, config.global_batch_size)
        early = EarlyStop(config.early_stop) if config.early_stop else None
        ema = Ema(wrapped, config.ema_decay) if config.ema_decay else None
        optional = {"ema": ema, "early_stop": early}
        parts = {"model": wrapped, "optimizer": trains, "scheduler": scheduler, "data": order, "precision": precision}
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

        def validated() -> dict[str, float]:
            if validation is None or measure is None:
                return {}
            broadcast_buffers(wrapped, group)  # what is validated is what a checkpoint holds
            with ema.applied() if ema else nullcontext():
                return evaluate(wrapped, validation, measure, group=group, batch_size=cut.largest)

        every = config.validate_every_steps or total
        ready = None
        mean_loss: float | None = None
        measured: dict[str, float] = {}

        for step in state.steps(total):
            if ready is None:  # only now does the order know where a checkpoint left it
                ready = batches(data, order, cut, config.data, seed=config.seed)
                meter.begin()
            profile.before(step)
            with meter.part("data"):
                parts_of_step = next(ready)
            metrics: dict[str, torch.Tensor | float] = {"epoch": order.epoch, "lr": scheduler.get_last_lr()[0]}
            with meter.part("compute"):
                with self._memory_named(step):
                    local = self._forward_backward(strategy, wrapped, parts_of_step, loss, precision)
                if precision.unscale(wrapped, trains):
                    if config.clip_norm:
                        metrics["grad_norm"] = strategy.clip(wrapped, config.clip_norm)
                    trains.step()
                    if ema:
                        ema.update()
                strategy.zero_grad(wrapped, trains)
            scheduler.step()
            order.advance()
            meter.step_done()
            regular = (step + 1) % every == 0 or step + 1 == total
            if regular or (state.saving and self._ranked_by_validation):
                began = time.perf_counter()
                measured = validated()
                meter.add("evaluation", time.perf_counter() - began)
                state.aside(time.perf_counter() - began)
                if early and regular:
                    early.update(measured)
                    if early.should_stop:
                        state.end()
            window = None
            if state.due:
                meter.add("checkpoint", state.take_stall())
                window = meter.close_window(float(local), strategy.comm_stats(wrapped), config.global_batch_size)
                mean_loss = window.loss
                metrics |= {f"validation_{k}": v for k, v in measured.items()} | window.metrics
                if precision.config.dtype == "fp16":
                    metrics["loss_scale"] = precision.loss_scale
                self._check_metric(metrics)
            state.report(
                loss=mean_loss, samples=config.global_batch_size, per_rank=window.per_rank if window else None, **metrics
            )
            if after_step:
                after_step(step)
        profile.close(state.step)
        return Result(step=state.step, loss=mean_loss, validation=measured or validated())

    # --- before the first step ---------------------------------------------------------------------------------------

    @property
    def _ranked_by_validation(self) -> bool:
        best = self.config.state.checkpoint.retention
        return bool(best.keep_best) and best.metric.startswith("validation_")

    def _check(self, data: Data | StreamData, validation: Data | None, measure: Measure | None) -> None:
        """Raises ConfigError for arguments of `fit` that are of no use, or that the config asks for and that are not there."""
        if not isinstance(data, StreamData):
            check_data(data, "data")
        if validation is not None:
            check_data(validation, "validation")
        if (validation is None) != (measure is None):
            raise ConfigError("pass both validation=, a data set, and measure=, a function that gives means over a batch of it")
        if validation is None and self.config.early_stop:
            raise ConfigError("early_stop needs a validation: pass validation= and measure=, or leave early_stop out")
        if validation is None and self._ranked_by_validation:
            metric = self.config.state.checkpoint.retention.metric
            raise ConfigError(f"checkpoint.retention.metric={metric!r} needs a validation: pass validation= and measure=")

    def _check_metric(self, metrics: Mapping[str, object]) -> None:
        best = self.config.state.checkpoint.retention
        known = {"loss", *metrics} | SOMETIMES
        if best.keep_best and best.metric not in known and (self.state.saving or not self._ranked_by_validation):
            raise ConfigError(f"checkpoint.retention.metric={best.metric!r}: write one of {', '.join(sorted(known))}")

    def _started(self, early: EarlyStop | None, state: State) -> None:
        if not state.step and state.group.rank:  # ranks that were seeded alike build the same model, and then draw apart
            rng.seed_all((torch.initial_seed() + 1_000_003 * state.group.rank) % 2**63)
        if early and early.should_stop:  # it had ended, and was started again
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

    def _blocks(self, model: nn.Module) -> list[nn.Module]:
        """The parts that are sharded, compiled and recomputed one by one. Raises ConfigError where some are asked for in vain."""
        config = self.config
        found = strategies.blocks(model, config.blocks)
        if config.recompute != "none" and not found:
            raise ConfigError(
                f"recompute={config.recompute}: {type(model).__name__} has no repeated parts that could be recomputed; "
                "write blocks: with the name of a class of its parts, or recompute: none"
            )
        if self.group.rank == 0:
            log.info("%s: %s", type(model).__name__, strategies.describe_blocks(found))
        return found

    def _first_share(self, data: Data | StreamData) -> Any:
        """This rank's part of the first step as one batch, to try sizes with."""
        config, group = self.config, self.group
        whole = Cut(
            global_batch_size=config.global_batch_size, rank=group.rank, world_size=group.world_size, micro_batch_size=None
        )
        ((batch, _),) = next(batches(data, self._order(data)[0], whole, LoaderConfig(), seed=config.seed))
        return batch

    def _trackers(self) -> list[Sink]:
        config = self.config.telemetry
        out: list[Sink] = []
        if config.tensorboard:
            out.append(Background("TensorBoard", partial(TensorBoard, config.tensorboard)))
        if config.mlflow:
            job = self.env.job or "run"
            out.append(
                Background(
                    "MLflow", partial(Mlflow, config.mlflow, config.mlflow_experiment, job, config_check.flatten(self.config))
                )
            )
        return out

    @contextmanager
    def _memory_named(self, step: int) -> Iterator[None]:
        """Raises OutOfMemory for torch's error inside, ConfigError where the next attempt would run into the same."""
        try:
            yield
        except RuntimeError as e:
            if not is_out_of_memory(e):
                raise
            raise out_of_memory(str(e), step=step, fixed=self.config.micro_batch_size != "auto") from e

    # --- one step ----------------------------------------------------------------------------------------------------

    def _forward_backward(
        self,
        strategy: strategies.Strategy[Any],
        model: nn.Module,
        parts: list[tuple[Any, int]],
        loss: Loss,
        precision: Precision,
    ) -> torch.Tensor:
        """Gradients of this rank's share in micro-batches; gives its part of the global mean loss."""
        group = self.group
        total = torch.zeros((), dtype=torch.float64, device=group.device)  # a GPU is waited for only when a step is logged
        for number, (batch, samples) in enumerate(parts):
            # Ranks and micro-batches may differ in size by a sample: each sample weighs the same, so that the step is
            # the mean over the global batch however it was cut. The strategy takes the mean over ranks, hence the world.
            weight = samples / self.config.global_batch_size
            kept = [] if samples else [b.clone() for b in model.buffers()]  # what counts for nothing moves no running statistics
            with strategy.accumulate(model, last=number + 1 == len(parts)):
                with precision.autocast():
                    value = loss(model, to_device(batch, group.device))
                torch.autograd.backward(value * (weight * group.world_size * precision.loss_scale))
            for buffer, before in zip(model.buffers(), kept, strict=bool(kept)):
                buffer.copy_(before)
            total += value.detach().to(torch.float64) * weight
        strategy.finish(model)
        return total

    def close(self) -> None:
        """Ends the groups. Use `with Trainer(config) as trainer` to have it called."""
        self.group.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # after an error peers may be gone, and an orderly goodbye would wait for them
            self.close()
