"""The training library inside the trainer image: what a script imports stands here.

    from dtj_trainer import State, Trainer, TrainerConfig

Names are imported when they are first used (PEP 562), so that `import dtj_trainer` alone does not
import torch, which takes seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtj_trainer.checkpoint.config import CheckpointConfig
    from dtj_trainer.cli import guarded
    from dtj_trainer.communication.config import CommunicationConfig
    from dtj_trainer.components.elastic import ElasticConfig
    from dtj_trainer.components.lr_schedule import ScheduleConfig
    from dtj_trainer.components.optimizer import OptimizerConfig
    from dtj_trainer.components.precision import PrecisionConfig
    from dtj_trainer.config import TrainerConfig
    from dtj_trainer.data.source import TensorData
    from dtj_trainer.errors import ConfigError, Stopped, TrainerError
    from dtj_trainer.state import State, StateConfig
    from dtj_trainer.strategies.comm_hook import compress_gradients
    from dtj_trainer.task import Task
    from dtj_trainer.trainer import Result, Trainer

_MODULES = {
    "CheckpointConfig": "checkpoint.config",
    "CommunicationConfig": "communication.config",
    "ConfigError": "errors",
    "ElasticConfig": "components.elastic",
    "OptimizerConfig": "components.optimizer",
    "PrecisionConfig": "components.precision",
    "Result": "trainer",
    "ScheduleConfig": "components.lr_schedule",
    "State": "state",
    "StateConfig": "state",
    "Stopped": "errors",
    "Task": "task",
    "TensorData": "data.source",
    "Trainer": "trainer",
    "TrainerConfig": "config",
    "TrainerError": "errors",
    "compress_gradients": "strategies.comm_hook",
    "guarded": "cli",
}

__all__ = [
    "CheckpointConfig",
    "CommunicationConfig",
    "ConfigError",
    "ElasticConfig",
    "OptimizerConfig",
    "PrecisionConfig",
    "Result",
    "ScheduleConfig",
    "State",
    "StateConfig",
    "Stopped",
    "Task",
    "TensorData",
    "Trainer",
    "TrainerConfig",
    "TrainerError",
    "compress_gradients",
    "guarded",
]


def __getattr__(name: str) -> Any:
    """Imports the public name's module."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    # The next use finds the name without this function.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
