"""Mixed precision: autocast to bf16 or fp16, with dynamic loss scaling for fp16."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import ConfigError
from dtj_trainer.torch_private import unscale


@dataclass(kw_only=True, slots=True)
class PrecisionConfig:
    """The types in which matrices are multiplied. Weights and the optimizer stay in fp32."""

    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    matmul: Literal["highest", "high", "medium"] | None = None
    """The precision of products of fp32 matrices on a GPU, as for
    torch.set_float32_matmul_precision: high is TF32, several times as fast as highest. None: as the
    script has set it; torch's default is highest."""
    initial_scale: float = 2.0**16
    """The factor of the loss in fp16, so that small gradients don't vanish; halved when gradients overflow."""
    growth_interval: int = 2000
    """Steps without an overflow after which the scale is doubled."""

    def __post_init__(self) -> None:
        if self.dtype not in ("fp32", "bf16", "fp16"):
            raise ConfigError(f"precision.dtype={self.dtype!r}: write fp32, bf16 or fp16")
        if self.matmul not in (None, "highest", "high", "medium"):
            raise ConfigError(f"precision.matmul={self.matmul!r}: write highest, high or medium, or leave it out")
        if self.initial_scale <= 0:
            raise ConfigError(f"precision.initial_scale={self.initial_scale}: write a number above 0")
        if self.growth_interval < 1:
            raise ConfigError(f"precision.growth_interval={self.growth_interval}: write a number of steps, 1 or more")


class Precision:
    """Autocast and loss scale of one run, saved in checkpoints.

    torch's GradScaler looks for overflows in this rank's gradients only. Under sharding another
    rank may have overflowed, so here all ranks agree: either all of them skip the step or none.
    """

    def __init__(self, config: PrecisionConfig, group: Group) -> None:
        self.config = config
        self.loss_scale = config.initial_scale if config.dtype == "fp16" else 1.0
        self._good_steps = 0
        self._group = group

    def autocast(self) -> AbstractContextManager[object]:
        """Returns the context for forward and loss."""
        if self.config.dtype == "fp32":
            return nullcontext()
        return torch.autocast(self._group.device.type, torch.bfloat16 if self.config.dtype == "bf16" else torch.float16)

    def unscale(self, model: nn.Module, optimizer: Optimizer) -> bool:
        """Divides the gradients by the loss scale.

        Returns False if they overflowed on any rank: skip the step. Covers the gradients of the
        model and of the optimizer: clipping takes all of the model's gradients, also those that the
        optimizer does not have.
        """
        if self.config.dtype != "fp16":
            return True
        overflow = unscale(_local_gradients(model, optimizer), self.loss_scale, self._group.device)
        if self._group.world_size > 1:
            dist.all_reduce(overflow, op=dist.ReduceOp.MAX)
        # No other line of a step in fp16 waits for the device.
        overflowed = bool(overflow.item())
        if overflowed:
            self.loss_scale, self._good_steps = min(self.loss_scale, max(1.0, self.loss_scale / 2)), 0
            return False
        self._good_steps += 1
        if self._good_steps == self.config.growth_interval:
            self.loss_scale, self._good_steps = self.loss_scale * 2, 0
        return True

    def state_dict(self) -> dict[str, Any]:
        """Returns the scale, how many steps it has held, and its type."""
        return {"loss_scale": self.loss_scale, "good_steps": self._good_steps, "dtype": self.config.dtype}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads what `state_dict` returned.

        A run that resumes in another precision begins with a new scale.
        """
        if self.config.dtype == "fp16" and state.get("dtype") == "fp16":
            self.loss_scale, self._good_steps = state["loss_scale"], state["good_steps"]


def _local_gradients(model: nn.Module, optimizer: Optimizer) -> Iterator[torch.Tensor]:
    held = (p for group in optimizer.param_groups for p in group["params"])
    for parameter in dict.fromkeys((*model.parameters(), *held)):
        if parameter.grad is not None:
            yield parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
