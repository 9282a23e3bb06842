"""DeepSpeed's configuration file beside the config of the run: what is in neither, in one, and in both."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from dtj_trainer.components.lr_schedule import ScheduleConfig
from dtj_trainer.components.optimizer import OptimizerConfig, check_element_wise, make_optimizer
from dtj_trainer.config import TrainerConfig
from dtj_trainer.distributed import config_check
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import ConfigError
from dtj_trainer.strategies.deepspeed import DeepSpeed, DeepSpeedConfig, EngineFiles, EngineSchedule, autos
from dtj_trainer.task import Task

BATCH, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
CLIP = "gradient_clipping"


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings of one run on so many ranks."""

    values: dict[str, Any]
    """The configuration that `deepspeed.initialize` gets."""
    micro_batch_size: int

    @property
    def has_optimizer(self) -> bool:
        """Whether the file has an optimizer, which DeepSpeed makes."""
        return "optimizer" in self.values

    @property
    def has_scheduler(self) -> bool:
        """Whether the file has a scheduler, which DeepSpeed makes and steps."""
        return "scheduler" in self.values

    def facts(self) -> dict[str, str]:
        """Returns what must be the same on every rank."""
        return {"strategy.config": json.dumps(self.values, sort_keys=True)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """The parts of a run that DeepSpeed's engine has made."""

    model: nn.Module
    optimizer: Optimizer
    micro_batch_size: int
    schedule: EngineSchedule | None
    files: EngineFiles


def start(strategy: DeepSpeed, model: nn.Module, task: Task, config: TrainerConfig, group: Group) -> Started:
    """Wraps a model by DeepSpeed; a collective. Raises ConfigError as `settle` does, and where `fit` contradicts."""
    settings, path = settle(config, group.world_size), strategy.config.config
    if settings.has_optimizer and task.optimizer:
        raise ConfigError(f"{path} has an optimizer, and fit has one of its own: leave one of them out")
    if settings.has_scheduler and task.scheduler:
        raise ConfigError(f"{path} has a scheduler, and fit has one of its own: leave one of them out")
    config_check.check(settings.facts(), group)

    def create() -> Optimizer:
        made = task.optimizer(model) if task.optimizer else make_optimizer(model, config.optimizer)
        if settings.values.get("zero_optimization", {}).get("stage"):
            check_element_wise(made, "deepspeed with ZeRO")
        return made

    engine, optimizer = strategy.initialize(model, settings.values, None if settings.has_optimizer else create)
    return Started(
        model=engine,
        optimizer=optimizer,
        micro_batch_size=settings.micro_batch_size,
        schedule=EngineSchedule(engine) if settings.has_scheduler else None,
        files=EngineFiles(engine, group.device),
    )


def check_installed() -> None:
    """Raises ConfigError where the package is missing."""
    if importlib.util.find_spec("deepspeed") is None:
        raise ConfigError(
            "strategy: deepspeed needs the package deepspeed, which the image lacks: install it, or write strategy "
            "zero1, zero2 or fsdp"
        )


def settle(config: TrainerConfig, world_size: int) -> Settings:
    """Returns the settings of a run with strategy deepspeed.

    Raises ConfigError, which names both fields, where the file and the config contradict each other.
    """
    assert isinstance(config.strategy, DeepSpeedConfig)
    path = config.strategy.config
    file = read(path)
    values = dict(file)
    values |= _batches(file, config, world_size, path)
    values[CLIP] = _agreed(file, CLIP, "clip_norm", config.clip_norm, path) or 0.0
    if "optimizer" in file and config.optimizer != OptimizerConfig():
        raise ConfigError(f"{path} has an optimizer, and the config too: leave optimizer out of one of them")
    if "scheduler" in file and config.schedule != ScheduleConfig():
        raise ConfigError(f"{path} has a scheduler, and the config a schedule: leave one of them out")
    if dict(file.get("checkpoint") or {}).get("use_node_local_storage"):
        raise ConfigError(f"{path}: checkpoint.use_node_local_storage: write false, all ranks write to one folder")
    if unknown := sorted(autos(values)):
        raise ConfigError(f'{path}: {unknown[0]} is "auto", which only transformers fills in: write a value')
    return Settings(values=values, micro_batch_size=values[MICRO])


def read(path: Path) -> dict[str, Any]:
    """Returns DeepSpeed's file. Raises ConfigError if it can't be read."""
    try:
        values = json.loads(path.read_text())
    except OSError as e:
        raise ConfigError(f"strategy.config {path}: {e.strerror}") from None
    except ValueError as e:
        raise ConfigError(f"strategy.config {path} is not valid JSON: {e}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"strategy.config {path}: write a JSON object, such as " + '{"zero_optimization": {}}')
    return values


def _batches(file: Mapping[str, Any], config: TrainerConfig, world_size: int, path: Path) -> dict[str, int]:
    """Returns the three sizes for this number of ranks, which DeepSpeed requires to fit each other."""
    whole = config.global_batch_size
    if (given := _number(file, BATCH, path)) not in (None, whole):
        raise ConfigError(
            f'{path}: {BATCH}={given}, but global_batch_size={whole}: write one size, or {BATCH}: "auto" in the file'
        )
    wanted = config.micro_batch_size
    assert not isinstance(wanted, str)  # TrainerConfig rejects auto
    micro = _agreed(file, MICRO, "micro_batch_size", wanted, path)
    share = -(-whole // world_size)
    steps = _number(file, STEPS, path)
    size = int(min(share, micro or (-(-share // int(steps)) if steps else share)))
    needed = -(-share // size)
    if steps is not None and steps != needed:
        raise ConfigError(
            f"{path}: {STEPS}={steps}, but global_batch_size={whole} on {world_size} ranks in micro-batches of {size} "
            f'takes {needed}: write {STEPS}: "auto", or leave it out'
        )
    return {BATCH: size * needed * world_size, MICRO: size, STEPS: needed}


def _agreed(file: Mapping[str, Any], key: str, field: str, value: float | None, path: Path) -> float | None:
    """Returns the number of the file or the config. Raises ConfigError if both have one, and they differ."""
    given = _number(file, key, path)
    if given is not None and value is not None and given != value:
        raise ConfigError(f"{path}: {key}={given}, but {field}={value}: leave one of them out")
    return value if given is None else given


def _number(file: Mapping[str, Any], key: str, path: Path) -> float | None:
    value = file.get(key)
    if value is None or value == "auto":
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0 or (key != CLIP and value < 1):
        raise ConfigError(f'{path}: {key}={value!r}: write a number, or "auto"')
    return value
