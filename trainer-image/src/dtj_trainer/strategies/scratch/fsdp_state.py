"""The state dicts of `fsdp_scratch`: shards by the module's own names, so that a save gathers nothing.

Any strategy and any world size can read such a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from dtj_trainer.distributed.flat_shard import StateDict
from dtj_trainer.strategies.scratch.flat_params import FlatParamGroup


class ShardedState:
    """Reads and writes the state of a model in flat parameter groups, and of its optimizer."""

    def __init__(
        self, flat_groups: Sequence[FlatParamGroup], unsharded: Mapping[str, torch.Tensor], aliases: Mapping[str, str]
    ) -> None:
        self._flat_groups = flat_groups
        self._unsharded = unsharded
        """Buffers and frozen parameters, which each rank holds whole."""
        self._aliases = aliases
        """Further names of shared weights, each with the name under which its group has it."""

    def model(self) -> StateDict:
        """Returns this rank's shards of the parameters, and the tensors that are not sharded."""
        state: StateDict = {}
        for flat_group in self._flat_groups:
            state |= flat_group.flat_shards(flat_group.shard)
        state |= {name: tensor.detach() for name, tensor in self._unsharded.items()}
        return state | {alias: state[name] for alias, name in self._aliases.items()}

    def load_model(self, state: StateDict) -> None:
        """Loads what `model` returned: each rank keeps its shards."""
        with torch.no_grad():
            for flat_group in self._flat_groups:
                flat_group.shard_changes()
                flat_group.load_flat_shards(flat_group.shard.detach(), state)
            for name, tensor in self._unsharded.items():
                tensor.copy_(state[name])

    def optimizer(self, optimizer: Optimizer) -> StateDict:
        """Returns the optimizer's state as torch's get_optimizer_state_dict does for an unsharded model, in shards."""
        state: StateDict = {}
        param_groups = []
        for param_group, flat_groups in self._by_param_group(optimizer):
            for flat_group in flat_groups:
                for key, value in initialized(optimizer, flat_group.shard).items():
                    if value.shape == flat_group.shard.shape:
                        by_name: StateDict = flat_group.flat_shards(value)
                    else:
                        by_name = {name: value.clone() for name in flat_group.names}
                    for name, tensor in by_name.items():
                        state.setdefault(name, {})[key] = tensor
            options = {k: v for k, v in param_group.items() if k != "params"}
            param_groups.append({"params": [name for flat_group in flat_groups for name in flat_group.names]} | options)
        return {"state": state, "param_groups": param_groups}

    def load_optimizer(self, optimizer: Optimizer, saved: StateDict) -> None:
        """Loads what `optimizer` returned."""
        for param_group, flat_groups in self._by_param_group(optimizer):
            for flat_group in flat_groups:
                for key, value in initialized(optimizer, flat_group.shard).items():
                    by_name = {name: saved["state"][name][key] for name in flat_group.names}
                    if value.shape == flat_group.shard.shape:
                        flat_group.load_flat_shards(value, by_name)
                    else:
                        # Step counts: 0 for a parameter that has had no gradient.
                        value.copy_(torch.stack(list(by_name.values())).amax(0))
            options = next(g for g in saved["param_groups"] if flat_groups[0].names[0] in g["params"])
            param_group.update({k: v for k, v in options.items() if k != "params"})

    def _by_param_group(self, optimizer: Optimizer) -> list[tuple[dict[str, Any], list[FlatParamGroup]]]:
        """Returns the optimizer's parameter groups, each with its flat groups."""
        by_shard = {id(flat_group.shard): flat_group for flat_group in self._flat_groups}
        return [(group, [by_shard[id(p)] for p in group["params"]]) for group in optimizer.param_groups]


def initialized(optimizer: Optimizer, shard: nn.Parameter) -> dict[str, torch.Tensor]:
    """Returns the tensors of one parameter's state.

    State that does not exist yet is created as zeros, by a step that changes nothing else.
    """
    if shard not in optimizer.state:
        fresh = [p for g in optimizer.param_groups for p in g["params"] if p not in optimizer.state]
        rates = [g["lr"] for g in optimizer.param_groups]
        optimizer.zero_grad(set_to_none=True)
        for p in fresh:
            p.grad = torch.zeros_like(p)
        for g in optimizer.param_groups:
            g["lr"] = 0.0
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for g, lr in zip(optimizer.param_groups, rates, strict=True):
            g["lr"] = lr
        for p in fresh:
            for value in optimizer.state[p].values():
                if isinstance(value, torch.Tensor):
                    value.zero_()
    return {k: v for k, v in optimizer.state[shard].items() if isinstance(v, torch.Tensor)}
