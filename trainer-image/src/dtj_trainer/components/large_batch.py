"""LARS and LAMB: steps that are as long as the layer's weights allow, for batches of thousands of samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer


class _TrustRatio(Optimizer):
    """Scales each matrix's step by the norm of its weights. Vectors, such as biases and norms, are not scaled.

    Works on whole tensors and on DTensors, whose norms are those of the whole tensor.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes a step; returns the closure's value, if there is one."""
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return value

    def _update(self, parameter: nn.Parameter, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError

    def _buffer(self, parameter: nn.Parameter, name: str) -> torch.Tensor:
        state: dict[str, torch.Tensor] = self.state[parameter]
        if name not in state:
            state[name] = torch.zeros_like(parameter)
        return state[name]


class Lars(_TrustRatio):
    """Layer-wise Adaptive Rate Scaling (You, Gitman, Ginsburg 2017, "Large Batch Training of Convolutional Networks").

    v ← momentum · v + lr · trust · |w| / (|g| + weight_decay · |w|) · (g + weight_decay · w);  w ← w - v
    """

    def __init__(
        self, params: Any, lr: float, momentum: float = 0.9, weight_decay: float = 0.0, trust: float = 0.001
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        super().__init__(params, defaults)

    def _update(self, parameter: nn.Parameter, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        decay = group["weight_decay"]
        change = gradient.add(parameter, alpha=decay) if decay else gradient
        if parameter.dim() > 1:
            weight = parameter.norm()
            change = change * _ratio(group["trust"] * weight, gradient.norm() + decay * weight)
        velocity = self._buffer(parameter, "momentum_buffer")
        velocity.mul_(group["momentum"]).add_(change * group["lr"])
        parameter.sub_(velocity)


class Lamb(_TrustRatio):
    """Layer-wise Adaptive Moments (You et al. 2020, "Large Batch Optimization for Deep Learning", algorithm 2).

    The step of AdamW with its weight decay, scaled to the length lr · |w|.
    """

    def __init__(
        self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.999), weight_decay: float = 0.0,
        eps: float = 1e-6,
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "eps": eps})

    def _update(self, parameter: nn.Parameter, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        first, second = group["betas"]
        state = self.state[parameter]
        step = state.setdefault("step", torch.zeros((), dtype=torch.float32))
        step += 1
        count = float(step)
        mean = self._buffer(parameter, "exp_avg").lerp_(gradient, 1 - first)
        square = self._buffer(parameter, "exp_avg_sq").mul_(second).addcmul_(gradient, gradient, value=1 - second)
        root = (square / (1 - second**count)).sqrt_().add_(group["eps"])
        change = (mean / (1 - first**count)).div_(root).add_(parameter, alpha=group["weight_decay"])
        if parameter.dim() > 1:
            change = change * _ratio(parameter.norm(), change.norm())
        parameter.sub_(change * group["lr"])


def _ratio(weight: torch.Tensor, change: torch.Tensor) -> torch.Tensor:
    """Returns the quotient of two norms; 1 where one of them is 0, as at the start of a layer of zeros."""
    is_known = (weight > 0) & (change > 0)
    one = torch.ones_like(weight)
    return torch.where(is_known, weight / torch.where(is_known, change, one), one)
