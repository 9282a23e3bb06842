"""Validation: means over a whole data set, on all ranks together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from dtj_trainer.data.nested import to_device
from dtj_trainer.data.source import BatchDataset, MapDataset, in_order
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import ConfigError

Measure = Callable[[nn.Module, Any], Mapping[str, torch.Tensor]]
"""Maps (model, batch) to means over the batch, by name."""


@torch.no_grad()
def evaluate(
    model: nn.Module, data: MapDataset | BatchDataset, measure: Measure, *, group: Group, batch_size: int
) -> dict[str, float]:
    """Returns the means of `measure` over `data`, each sample once, over all ranks; a collective.

    Computed in fp32, without autocast.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    sums: dict[str, torch.Tensor] = {}
    count = 0
    for batch, n in in_order(data, batch_size, group.rank, group.world_size):
        for name, value in _means(measure(model, to_device(batch, group.device))).items():
            sums[name] = sums.get(name, 0.0) + value.to(torch.float64) * n
        count += n
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Without a backward its root stays whole, and would train with the weights that it has
            # now (averages, perhaps).
            module.reshard()
    for module, training in modes.items():
        module.training = training  # submodules in eval() stay there
    everyone: dict[str, float] = {}
    total = 0
    for means, n in group.all_objects(({k: float(v) for k, v in sums.items()}, count)):
        total += n
        for name, value in means.items():
            everyone[name] = everyone.get(name, 0.0) + value
    return {name: value / total for name, value in everyone.items()}


def _means(measured: object) -> dict[str, torch.Tensor]:
    """Returns what `measure` gave, as tensors of one number. Raises ConfigError if it gave anything else."""
    if not isinstance(measured, Mapping):
        raise ConfigError(
            f"measure gave a {type(measured).__name__}: return a dict of means over the batch, such as "
            '{"accuracy": hits.float().mean()}'
        )
    found: dict[str, torch.Tensor] = {}
    for name, value in measured.items():
        try:
            number = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError):
            number = torch.empty(0)
        if number.numel() != 1:
            kind = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)[:80]
            raise ConfigError(f"measure gave {kind} as {name!r}: return one number, the mean over the batch")
        found[name] = number.reshape(())
    return found
