"""CPU offload: the tensors of a shard that live in host memory, and copies that the device does not wait for."""

from __future__ import annotations

from typing import Literal

import torch

from dtj_trainer.errors import ConfigError

CpuOffload = bool | Literal["optimizer", "all"]
"""The field `strategy.cpu_offload`; true is all."""
Offload = Literal["none", "optimizer", "all"]


def check_cpu_offload(value: CpuOffload) -> None:
    """Raises ConfigError for any other value of `strategy.cpu_offload`."""
    if not isinstance(value, bool) and value not in ("optimizer", "all"):
        raise ConfigError(f"strategy.cpu_offload={value!r}: write true, false, all or optimizer")


def offload_of(value: CpuOffload) -> Offload:
    """Returns what `strategy.cpu_offload` moves to host memory."""
    if isinstance(value, bool):
        return "all" if value else "none"
    return value


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy in host memory, pinned if the tensor is on a GPU.

    From a GPU the copy is only begun: `wait_for_host` waits until it can be read.
    """
    # In the same order of memory: with another one a product may have other last bits.
    out = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda, requires_grad=False)
    return out.copy_(tensor.detach(), non_blocking=True)


def wait_for_host(device: torch.device, *, offload: Offload) -> None:
    """Waits once for all copies to the host that were begun on this device."""
    if device.type == "cuda" and offload != "none":
        torch.cuda.current_stream(device).synchronize()
