"""DeepSpeed's engine as a strategy: its own configuration file decides how a model is spread over the ranks.

DeepSpeed is imported when a model is wrapped, and is no dependency of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dtj_trainer import universal
from dtj_trainer.data.nested import on_tensors
from dtj_trainer.distributed.comm_timer import CommStats
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import ConfigError


@dataclass(kw_only=True, slots=True)
class DeepSpeedConfig:
    """DeepSpeed, with the file that `deepspeed.initialize` gets."""

    config: Path = Path("ds_config.json")
    """The JSON file. Sizes of batches, gradient_clipping and the optimizer may be left out there, and are then those
    of the run; "auto" is the same for the numbers."""

    def __post_init__(self) -> None:
        self.config = Path(self.config)


class DeepSpeed:
    """The strategy `deepspeed`. `initialize` wraps the model, because DeepSpeed needs the optimizer for that."""

    name = "deepspeed"

    def __init__(self, config: DeepSpeedConfig) -> None:
        self.config = config

    def wrap(self, model: nn.Module, group: Group) -> nn.Module:
        """Returns the model unchanged: DeepSpeed moves it, or parts of it, to the device."""
        del group
        return model

    def initialize(
        self, model: nn.Module, values: Mapping[str, Any], make_optimizer: Callable[[], Optimizer] | None
    ) -> tuple[nn.Module, Optimizer]:
        """Returns DeepSpeed's engine, and the optimizer that has the learning rates; a collective.

        Args:
            model: The model, of which DeepSpeed may leave each rank a part.
            values: The settings, from the file and the run.
            make_optimizer: Makes the optimizer; None where the file has one.

        Raises ConfigError for settings that DeepSpeed rejects.
        """
        import deepspeed  # imported only for this strategy

        trained = [p for p in model.parameters() if p.requires_grad]
        try:
            engine, *_ = deepspeed.initialize(
                model=model,
                optimizer=make_optimizer() if make_optimizer else None,
                model_parameters=None if make_optimizer else trained,
                config=dict(values),
            )
        except Exception as e:
            ours = isinstance(e, (AssertionError, ValueError, NotImplementedError))
            if not ours and not type(e).__module__.startswith("deepspeed."):
                raise
            reason = " ".join(str(e).split()) or type(e).__name__
            raise ConfigError(f"strategy.config {self.config.config}: DeepSpeed rejects it: {reason}") from e
        _cast_inputs(engine)
        return engine, engine.basic_optimizer

    def accumulate(self, model: Any, last: bool) -> AbstractContextManager[object]:
        """Makes the last micro-batch of a step the one at which DeepSpeed brings the gradients together."""
        model.set_gradient_accumulation_boundary(last)
        return nullcontext()

    def backward(self, model: Any, value: torch.Tensor) -> None:
        """Runs the backward of a loss that has its weight in the step already."""
        model.backward(value, scale_wrt_gas=False)

    def step(self, model: Any) -> dict[str, torch.Tensor | float]:
        """Takes the optimizer step, which clips and clears the gradients. Returns metrics of the step."""
        model.step()
        norm = model.get_global_grad_norm() if model.gradient_clipping() and model.was_step_applied() else None
        found: dict[str, torch.Tensor | float] = {} if norm is None else {"grad_norm": norm}
        if model.fp16_enabled() and (scale := getattr(model.optimizer, "loss_scale", None)) is not None:
            found["loss_scale"] = float(scale)
        return found

    def finish(self, model: nn.Module) -> None:
        """Returns at once: `step` waits for the gradients."""
        del model

    def clip(self, model: nn.Module, max_norm: float) -> torch.Tensor:
        """Raises an error: DeepSpeed clips in its step."""
        raise NotImplementedError("DeepSpeed clips by gradient_clipping")

    def comm_stats(self, model: nn.Module) -> CommStats | None:
        """Returns None: DeepSpeed's communication is measured by its own comms_logger."""
        del model
        return None

    def zero_grad(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Returns at once: `step` has cleared the gradients."""
        del model, optimizer


class EngineFiles:
    """The engine's part of a checkpoint: files that DeepSpeed writes, for any number of ranks."""

    def __init__(self, engine: Any, device: torch.device) -> None:
        self._engine, self._device = engine, device

    def nonfinite(self) -> str:
        """Returns the name of a trained parameter that is not finite on this rank; "" if all are."""
        for name, parameter in self._engine.module.named_parameters():
            # ZeRO 3 leaves a rank a part of each parameter.
            held = getattr(parameter, "ds_tensor", parameter).detach()
            if parameter.requires_grad and held.numel() and not bool(torch.isfinite(held).all()):
                return str(name)
        return ""

    def save_files(self, folder: Path) -> None:
        """Writes the files; a collective, in a thread for which the training waits."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        universal.write(self._engine, folder)

    def load_files(self, folder: Path) -> None:
        """Loads the files. Raises ConfigError where the file now has another model or stage; a collective."""
        try:
            universal.read(self._engine, folder)
        except (AssertionError, KeyError, ValueError, RuntimeError) as e:
            raise ConfigError(
                f"{folder} does not fit this model and DeepSpeed's settings ({type(e).__name__}: {e}): "
                "set them back, or start in a new checkpoint folder"
            ) from e


class EngineSchedule:
    """The scheduler of DeepSpeed's file, which the engine steps and saves by itself."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def step(self) -> None:
        """Returns at once: the engine has stepped."""

    def get_last_lr(self) -> list[float]:
        """Returns the rates of the next step."""
        return [float(rate) for rate in self._engine.get_lr()]

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: the engine's files have its state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads nothing: the engine has loaded its state."""
        del state


def restore_rates(optimizer: Optimizer, scheduler: LRScheduler | EngineSchedule) -> None:
    """Gives the optimizer the scheduler's rates: a universal checkpoint has none for each group."""
    if isinstance(scheduler, LRScheduler):
        for group, rate in zip(optimizer.param_groups, scheduler.get_last_lr(), strict=True):
            group["lr"] = rate


def _cast_inputs(engine: Any) -> None:
    """Casts what the model gets to the type of its weights, where the file has bf16 or fp16 without autocast."""
    if engine.torch_autocast_enabled() or not (engine.bfloat16_enabled() or engine.fp16_enabled()):
        return
    dtype = torch.bfloat16 if engine.bfloat16_enabled() else torch.float16

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        del module
        return on_tensors(args, cast), on_tensors(kwargs, cast)

    engine.module.register_forward_pre_hook(before, with_kwargs=True)


def autos(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yields the dotted keys of settings that are "auto"."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from autos(value, f"{prefix}{key}.")
        elif value == "auto":
            yield f"{prefix}{key}"
