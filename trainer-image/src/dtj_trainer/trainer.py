"""The whole loop: `Trainer(config).fit(model, data, loss=...)`.

The loop is what a user of `State` would write, with strategy, precision, accumulation, schedule and
validation in it. `prepare` assembles a `Run`, which has the steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dtj_trainer import deepspeed_file
from dtj_trainer.components.compile import check_compiler
from dtj_trainer.components.validation import Measure
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.loader import StreamData
from dtj_trainer.data.order import rank_bounds
from dtj_trainer.distributed import config_check
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.errors import ConfigError
from dtj_trainer.prepare import batch_rule, prepare
from dtj_trainer.state import State
from dtj_trainer.strategies import DeepSpeedConfig
from dtj_trainer.task import Data, Flops, Loss, Task
from dtj_trainer.telemetry.record import Sink


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How a run ended."""

    step: int
    loss: float | None
    """Mean loss of the last step over all ranks; None if this attempt had no step left to do."""
    validation: dict[str, float]


class Trainer:
    """Trains one model on one group of ranks, and resumes from the newest checkpoint."""

    state: State
    """The state of the newest `fit`."""

    def __init__(self, config: TrainerConfig, env: WorkerEnv | None = None) -> None:
        """Joins the group. Raises RankMismatch if the ranks were started differently."""
        self.config = config
        self.env = env or WorkerEnv.read()
        # A batch that is too small is rejected before any rank waits for another.
        if batch_rule(config, self.env) == "Global":
            rank_bounds(config.global_batch_size, self.env.rank, self.env.world_size)
        if isinstance(config.strategy, DeepSpeedConfig):
            if batch_rule(config, self.env) != "Global":
                raise ConfigError("elastic.batch: PerRank does not work with strategy deepspeed: write Global")
            deepspeed_file.check_installed()
            deepspeed_file.settle(config, self.env.world_size)
        self.on_start: Callable[[State], None] | None = None
        """Called once by `fit`, after the load and before the first step."""
        if config.cpu_threads:
            torch.set_num_threads(config.cpu_threads)
        if config.deterministic:
            # cuBLAS reads the variable when it is first used.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        if config.precision.matmul:
            torch.set_float32_matmul_precision(config.precision.matmul)
        check_compiler(config.compile, self.env.local_rank)
        self.group = Group.open(self.env, timeout=timedelta(seconds=config.state.collective_timeout_seconds))
        config_check.check(
            config_check.startup_facts(config, self.group, self.env, config.state.checkpoint), self.group
        )

    def fit(
        self,
        model: nn.Module,
        data: Data | StreamData,
        *,
        loss: Loss,
        validation: Data | None = None,
        measure: Measure | None = None,
        optimizer: Callable[[nn.Module], Optimizer] | None = None,
        scheduler: Callable[[Optimizer, int], LRScheduler] | None = None,
        after_step: Callable[[int], None] | None = None,
        sinks: Sequence[Sink] = (),
        flops_per_sample: Flops | None = None,
        tokens_per_sample: float | None = None,
        images_per_sample: float | None = None,
    ) -> Result:
        """Trains to the end. Raises Stopped after SIGTERM.

        Args:
            model: Built alike on all ranks. Put into train() if it is in eval() as a whole.
            data: A data set with `__len__` and `__getitem__` (or `get_batch`), or a stream with
                `read(start)`.
            loss: `loss(model, batch)` returns the mean over the batch, one number with a gradient.
            validation: A data set to validate on, at the end and every
                `config.validate_every_steps`.
            measure: `measure(model, batch)` returns means over a batch of `validation`, by name.
            optimizer: `optimizer(model)` returns an optimizer to use instead of `config.optimizer`,
                made of the parameters of the model as the strategy has wrapped it (with
                fsdp_scratch those are flat shards).
            scheduler: `scheduler(optimizer, steps)` returns a scheduler to use instead of
                `config.schedule`, which is stepped after each optimizer step; steps: of the run.
            after_step: `after_step(step)` is called at the end of each step.
            sinks: Further places for rank 0's records.
            flops_per_sample: FLOPs of forward and backward, for MFU. auto: counted by one pass on
                torch's meta device, where the device's peak is known.
            tokens_per_sample: Tokens of one sample, on average and without padding, for tokens/s.
            images_per_sample: Images of one sample, for images/s.
        """
        task = Task(
            model=model,
            data=data,
            loss=loss,
            validation=validation,
            measure=measure,
            optimizer=optimizer,
            scheduler=scheduler,
            flops_per_sample=flops_per_sample,
            tokens_per_sample=tokens_per_sample,
            images_per_sample=images_per_sample,
        )
        run = prepare(task, self.config, self.group, self.env, sinks=sinks, on_start=self.on_start)
        self.state = state = run.state
        # Code of the caller, a compiler that meets a new shape, and the profiler's files may take
        # long without a word.
        if not (after_step or sinks or self.config.compile or self.config.telemetry.profile):
            state.announce_all_pauses()
        mean_loss: float | None = None
        validated: dict[str, float] = {}
        for step, micro_batches in run.steps():  # resumes, saves, and stops on SIGTERM
            local_loss, metrics = run.train_step(step, micro_batches)
            if run.validation_due(step):
                validated = run.validate()
                run.check_early_stop(step, validated)
            if state.will_log:
                mean_loss = run.log_step(local_loss, metrics, validated)
            else:
                state.report(samples=run.order.size)
            if after_step:
                after_step(step)
        run.settle()
        return Result(step=state.step, loss=mean_loss, validation=validated or run.validate())

    def close(self) -> None:
        """Closes the process groups. `with Trainer(config) as trainer` calls this method."""
        self.group.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error peers may be gone, and an orderly close would wait for them.
        if kind is None:
            self.close()
