"""Prepares a Run: checks the arguments of `Trainer.fit`, and decides what is automatic."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from dtj_trainer import deepspeed_file, strategies
from dtj_trainer.auto_batch import find_micro_batch_size
from dtj_trainer.checkpoint import rng
from dtj_trainer.checkpoint.weights import load_weights
from dtj_trainer.communication import GradientQueue
from dtj_trainer.components import lr_schedule
from dtj_trainer.components.activation_checkpoint import checkpoint_activations
from dtj_trainer.components.activation_offload import offload_activations
from dtj_trainer.components.compile import compile_forward
from dtj_trainer.components.early_stopping import EarlyStop
from dtj_trainer.components.elastic import RateRule, shard_size
from dtj_trainer.components.ema import Ema
from dtj_trainer.components.noise_scale import NoiseScale
from dtj_trainer.components.optimizer import check_element_wise, make_optimizer
from dtj_trainer.components.precision import Precision
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.loader import BatchPartition, LoaderConfig, StreamData, StreamOrder, batches
from dtj_trainer.data.order import DataOrder, rank_bounds
from dtj_trainer.data.source import check_data, fetch
from dtj_trainer.data.step_size import BatchRule
from dtj_trainer.distributed import config_check
from dtj_trainer.distributed.device_memory import device_bytes
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.errors import ConfigError
from dtj_trainer.run import Run, ranked_by_validation
from dtj_trainer.state import State
from dtj_trainer.strategies import StrategyConfig
from dtj_trainer.strategies.deepspeed import EngineSchedule, restore_rates
from dtj_trainer.task import Data, Task, scalar_loss
from dtj_trainer.telemetry.flops import try_count_flops
from dtj_trainer.telemetry.gpu import peak_flops
from dtj_trainer.telemetry.meter import Meter
from dtj_trainer.telemetry.own_time import OwnTime
from dtj_trainer.telemetry.profiler import ProfilerWindow
from dtj_trainer.telemetry.progress import ProgressReporter
from dtj_trainer.telemetry.record import Sink
from dtj_trainer.telemetry.sinks import Background, Mlflow, TensorBoard
from dtj_trainer.tuning.tune import tune

log = logging.getLogger(__name__)


def prepare(
    task: Task,
    config: TrainerConfig,
    group: Group,
    env: WorkerEnv,
    *,
    sinks: Sequence[Sink] = (),
    on_start: Callable[[State], None] | None = None,
) -> Run:
    """Makes the Run of a task. Raises ConfigError for arguments that can't work; a collective.

    Args:
        task: What is trained on what. Its model is put into train() if it is in eval() as a whole.
        config: The run's config, checked to be the same on all ranks.
        group: All ranks of the run.
        env: This rank's environment.
        sinks: Further places for rank 0's records.
        on_start: Called once, after the load and before the first step.
    """
    # Without a phase, the agent would take the backward passes of a warm-up for steps.
    with ProgressReporter(env.agent_socket, rank=group.rank, attempt=env.attempt) as progress:
        progress.phase("loading")
    check_arguments(task, config)
    order, total_steps = make_order(task.data, config, group.world_size, batch_rule(config, env))
    precision = Precision(config.precision, group)
    loss = scalar_loss(task.loss)
    model = task.model
    # from_pretrained returns a model in eval(). A module in eval() of a model in train() stays.
    if not model.training:
        model.train()
    fill = load_weights(model, config.init_from, partial=config.init_partial) if config.init_from is not None else None
    strategy_config = decide_strategy(model, config, group)
    if env.elastic:
        strategy_config = fit_shards(strategy_config, group)
    if not isinstance(strategy_config, strategies.FsdpConfig):
        strategies.check_not_meta(model, strategies.name_of(strategy_config))
    found = find_blocks(model, config, group)
    micro_batch_size = config.micro_batch_size
    if micro_batch_size == "auto":
        share = _first_share(task.data, order, config, group)
        micro_batch_size = find_micro_batch_size(
            model, share, loss, config=config, strategy=strategy_config, group=group, precision=precision
        )
    if config.tune:
        folder = config.state.checkpoint.directory or env.checkpoint_dir
        tuned = tune(
            task, loss, config, strategy=strategy_config, micro_batch_size=micro_batch_size, group=group, order=order,
            folder=Path(folder) if folder else None,
        )  # fmt: skip
        strategy_config, micro_batch_size = tuned.strategy, tuned.micro_batch_size
        config = replace(config, data=tuned.data)
    # Before blocks are recomputed or compiled: MFU counts the work of the model, and no work done twice.
    flops = count_task_flops(task, loss, config, group)
    checkpoint_activations(found, config.recompute)
    if config.activation_offload:
        offload_activations(found, group.device)
    compile_forward(model, config.compile, strategy_config, config.blocks)
    strategy = strategies.make(strategy_config, config.blocks, config.communication, fill)
    config_check.check(strategies.shapes(model), group)
    model = strategy.wrap(model, group)
    engine: deepspeed_file.Started | None = None
    if isinstance(strategy, strategies.DeepSpeed):
        engine = deepspeed_file.start(strategy, model, task, config, group)
        model, optimizer, micro_batch_size = engine.model, engine.optimizer, engine.micro_batch_size
    else:
        optimizer = task.optimizer(model) if task.optimizer else make_optimizer(model, config.optimizer)
    if isinstance(strategy_config, strategies.FLAT):
        check_element_wise(optimizer, strategies.name_of(strategy_config))
    scheduler: LRScheduler | EngineSchedule
    if engine is not None and engine.schedule is not None:
        scheduler = engine.schedule
    else:
        scheduler = make_scheduler(task, optimizer, config, env, order, total_steps)
    early_stop = EarlyStop(config.early_stop) if config.early_stop else None
    ema = Ema(model, config.ema_decay) if config.ema_decay else None
    trained: dict[str, object] = {"model": model, "optimizer": optimizer}
    if engine is not None:
        trained = {"deepspeed": engine.files}
    saved = {**trained, "scheduler": scheduler, "data": order, "precision": precision}
    queue: GradientQueue | None = getattr(strategy, "queue", None)
    kept = queue if config.communication.keeps_residuals else None
    local = strategy if isinstance(strategy, strategies.LocalSgd) else None
    optional = {"ema": ema, "early_stop": early_stop, "communication": kept, "local_sgd": local}
    saved |= {name: value for name, value in optional.items() if value is not None}
    settings = config.state
    # Between two exchanges a snapshot would be one rank's own, and it has no state of DeepSpeed.
    if local is not None or engine is not None:
        settings = replace(settings, checkpoint=replace(settings.checkpoint, snapshot_every_steps=0))
    state = State.attach(settings, env, group, **saved)
    run: Run

    def start(state: State) -> None:
        _start(run, state, on_start)

    state.on_start = start
    if group.rank == 0:
        state.sinks += [*_trackers(config, env), *sinks]
    run = Run(
        config=config,
        group=group,
        state=state,
        total_steps=total_steps,
        model=model,
        strategy=strategy,
        loss=loss,
        optimizer=optimizer,
        scheduler=scheduler,
        precision=precision,
        ema=ema,
        early_stop=early_stop,
        data=task.data,
        order=order,
        micro_batch_size=micro_batch_size,
        validation=task.validation,
        measure=task.measure,
        meter=Meter(
            group,
            flops_per_sample=flops,
            units_per_sample={"tokens": task.tokens_per_sample, "images": task.images_per_sample},
            peak=config.telemetry.peak_flops,
            single_rank_rate=config.telemetry.single_rank_samples_per_second,
        ),
        own_time=OwnTime(
            group.device,
            measures=group.world_size > 1
            and isinstance(strategy_config, (strategies.DdpConfig, strategies.DdpScratchConfig)),
        ),
        noise=NoiseScale(group) if config.communication.noise_scale and group.world_size > 1 else None,
        profiler=ProfilerWindow(config.telemetry.profile, group.rank),
    )
    return run


def make_scheduler(
    task: Task,
    optimizer: Optimizer,
    config: TrainerConfig,
    env: WorkerEnv,
    order: DataOrder | StreamOrder,
    total_steps: int,
) -> LRScheduler:
    """Returns the task's own scheduler, or the one of the config."""
    if task.scheduler is None:
        by_samples, rule = config.epochs is not None, rate_rule(config, env)
        return lr_schedule.make_schedule(
            optimizer, config.schedule, total_steps, order, by_samples=by_samples, rate_rule=rule
        )
    if config.schedule != lr_schedule.ScheduleConfig():
        raise ConfigError("fit has a scheduler of its own, and the config a schedule: leave one of them out")
    own: object = task.scheduler(optimizer, total_steps)
    if not isinstance(own, LRScheduler) or isinstance(own, ReduceLROnPlateau):
        raise ConfigError(
            f"scheduler gave a {type(own).__name__}: return a torch.optim.lr_scheduler that is stepped without a metric"
        )
    return own


def check_arguments(task: Task, config: TrainerConfig) -> None:
    """Raises ConfigError for unusable arguments of `fit`, and for missing ones that the config needs."""
    if not any(p.requires_grad for p in task.model.parameters()):
        raise ConfigError(
            f"model: {type(task.model).__name__} has no parameter to train: set requires_grad of those to be trained"
        )
    if not isinstance(task.data, StreamData):
        check_data(task.data, "data")
    if task.validation is not None:
        check_data(task.validation, "validation")
        if not len(task.validation):
            raise ConfigError("validation is an empty data set: check the path that it is read from")
    if (task.validation is None) != (task.measure is None):
        raise ConfigError(
            "pass both validation=, a data set, and measure=, a function that gives means over a batch of it"
        )
    if task.flops_per_sample == "auto" and isinstance(task.data, StreamData):
        raise ConfigError("flops_per_sample='auto' needs a data set: for a stream write the number of FLOPs")
    if task.validation is None and config.early_stop:
        raise ConfigError("early_stop needs a validation: pass validation= and measure=, or leave early_stop out")
    if task.validation is None and ranked_by_validation(config):
        metric = config.state.checkpoint.retention.metric
        raise ConfigError(f"checkpoint.retention.metric={metric!r} needs a validation: pass validation= and measure=")


def batch_rule(config: TrainerConfig, env: WorkerEnv) -> BatchRule:
    """Returns which batch stays the same when the world size changes: the config's rule, else the job's."""
    return config.elastic.batch or cast("BatchRule", env.elastic_batch or "Global")


def rate_rule(config: TrainerConfig, env: WorkerEnv) -> RateRule:
    """Returns how the learning rate follows from the size of a step: the config's rule, else the job's."""
    return config.elastic.learning_rate or cast("RateRule", env.elastic_learning_rate or "Keep")


def fit_shards(config: StrategyConfig, group: Group) -> StrategyConfig:
    """Returns the config with a shard size that divides the world; a rank then holds no more than configured."""
    if not isinstance(config, strategies.HsdpConfig) or config.shard_size is None:
        return config
    size = shard_size(config.shard_size, group.world_size)
    if size != config.shard_size and group.rank == 0:
        log.info("hsdp: %d ranks share a replica, because %d do not divide the world", size, config.shard_size)
    return replace(config, shard_size=size)


def make_order(
    data: Data | StreamData, config: TrainerConfig, world_size: int, rule: BatchRule
) -> tuple[DataOrder | StreamOrder, int]:
    """Returns (order of the samples, number of steps at the first world size)."""
    if isinstance(data, StreamData):
        if config.steps is None:
            raise ConfigError("a stream has no epochs: write steps")
        stream = StreamOrder(global_batch_size=config.global_batch_size, world_size=world_size, batch_rule=rule)
        return stream, config.steps
    order = DataOrder(
        length=len(data),
        global_batch_size=config.global_batch_size,
        world_size=world_size,
        batch_rule=rule,
        seed=config.seed,
        shuffle=config.shuffle,
    )
    total = config.steps if config.steps is not None else order.steps_for(config.epochs or 0)
    if total < 1:
        size = config.global_batch_size
        raise ConfigError(f"epochs={config.epochs} is less than one step of global_batch_size={size}")
    return order, total


def decide_strategy(model: nn.Module, config: TrainerConfig, group: Group) -> StrategyConfig:
    """Returns the strategy's config.

    The smallest device of the group decides `auto`; the log has the reason.
    """
    configured = config.strategy
    if not isinstance(configured, strategies.AutoConfig):
        return configured
    smallest = group.gather(torch.tensor(device_bytes(group), dtype=torch.int64)).min()
    facts = strategies.ModelFacts(
        parameters=sum(p.numel() for p in model.parameters()),
        parameter_bytes=strategies.tensor_bytes(model),
        optimizer_bytes_per_parameter=4 * max(1, config.optimizer.moments),
        device_bytes=int(smallest),
        world_size=group.world_size,
        local_world_size=group.local_world_size,
    )
    choice = strategies.choose(facts, configured)
    if group.rank == 0:
        log.info("strategy %s", choice.reason)
    return choice.config


def find_blocks(model: nn.Module, config: TrainerConfig, group: Group) -> list[nn.Module]:
    """Returns the modules that are sharded, compiled and recomputed one by one.

    Raises ConfigError if `recompute` or `activation_offload` needs some and the model has none.
    """
    found = strategies.blocks(model, config.blocks)
    if config.recompute != "none" and not found:
        raise ConfigError(
            f"recompute={config.recompute}: {type(model).__name__} has no repeated modules that could be recomputed; "
            "write blocks: with the name of a class of its modules, or recompute: none"
        )
    if config.activation_offload and not found:
        raise ConfigError(
            f"activation_offload: {type(model).__name__} has no repeated modules whose activations could be moved; "
            "write blocks: with the name of a class of its modules, or activation_offload: false"
        )
    if group.rank == 0:
        log.info("%s: %s", type(model).__name__, strategies.describe_blocks(found))
    return found


def count_task_flops(
    task: Task, loss: Callable[[nn.Module, Any], torch.Tensor], config: TrainerConfig, group: Group
) -> float | None:
    """Returns the FLOPs of one sample: the task's number, or a count where the device's peak is known."""
    if task.flops_per_sample != "auto":
        return task.flops_per_sample
    if isinstance(task.data, StreamData) or not (config.telemetry.peak_flops or peak_flops(group.device)):
        return None
    samples = min(2, len(task.data))  # BatchNorm takes no single sample
    random_state = rng.capture()
    batch = fetch(task.data, np.arange(samples, dtype=np.int64))
    rng.restore(random_state)
    return try_count_flops(task.model, loss, batch, samples)


def _first_share(data: Data | StreamData, order: DataOrder | StreamOrder, config: TrainerConfig, group: Group) -> Any:
    """Returns this rank's share of the first step as one batch, to try sizes with."""
    # With PerRank a world that has grown may have more ranks than the first one had samples.
    tried = replace(order, global_batch_size=max(order.global_batch_size, group.world_size))
    whole = BatchPartition(
        global_batch_size=tried.size, rank=group.rank, world_size=group.world_size, micro_batch_size=None
    )
    ((batch, _),) = next(batches(data, tried, whole, LoaderConfig(), seed=config.seed))
    return batch


def _trackers(config: TrainerConfig, env: WorkerEnv) -> list[Sink]:
    telemetry = config.telemetry
    out: list[Sink] = []
    if telemetry.tensorboard:
        out.append(Background("TensorBoard", partial(TensorBoard, telemetry.tensorboard)))
    if telemetry.mlflow:
        uri, experiment = telemetry.mlflow, telemetry.mlflow_experiment
        # Jobs of one name in two namespaces may share a server.
        job = "/".join(filter(None, (env.namespace, env.job))) or "run"
        out.append(Background("MLflow", partial(Mlflow, uri, experiment, job, config_check.flatten(config))))
    return out


def _start(run: Run, state: State, on_start: Callable[[State], None] | None) -> None:
    """Prepares the first step, once a checkpoint is loaded."""
    order = run.order
    rank_bounds(order.size, run.group.rank, run.group.world_size)
    if order.batch_rule == "PerRank":
        if isinstance(run.scheduler, lr_schedule.BatchSchedule):
            lr_schedule.set_rates(run.optimizer, run.scheduler)
        if isinstance(order, DataOrder) and run.config.epochs is not None:
            state.end_at(state.step + order.steps_for(run.config.epochs))
    if isinstance(run.strategy, strategies.DeepSpeed):
        restore_rates(run.optimizer, run.scheduler)
    # Ranks that were seeded alike build the same model, and must draw different numbers afterwards.
    if not state.step and state.group.rank:
        rng.seed_all((torch.initial_seed() + 1_000_003 * state.group.rank) % 2**63)
    # A run that has ended already takes no step that would gather what was loaded.
    if gather := getattr(run.model, "gather_weights", None):
        gather()
    # The run had ended early, and was started again.
    if run.early_stop and run.early_stop.should_stop:
        state.end_at(state.step)
    if on_start:
        on_start(state)
