"""The variables that the agent sets for a rank, as far as an import must not, or may, have read them."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Tuple

_PER_RANK = frozenset((
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE",
    "DTJ_ATTEMPT", "DTJ_STARTED_AT",
))  # fmt: skip
_PER_RANK_PREFIXES = ("TORCHELASTIC_", "HOROVOD_", "KUBEFLOW_TRAINER_SERVER_")
_PER_ATTEMPT = frozenset((
    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE", "DTJ_ATTEMPT",
    "DTJ_STARTED_AT", "DTJ_CHECKPOINT_KEEP", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT",
    "KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_TOKEN",
))  # fmt: skip


def is_per_rank(name: str) -> bool:
    """Returns whether a variable may differ between ranks, so that a process of all ranks can't know it."""
    return name in _PER_RANK or name.startswith(_PER_RANK_PREFIXES)


def is_per_attempt(name: str) -> bool:
    """Returns whether a variable may differ between the attempts of a rank, so that nothing can know it ahead."""
    return name in _PER_ATTEMPT


def lasting(order: Mapping[str, Any]) -> Tuple[object, Dict[str, str]]:
    """Returns the part of an order of the warm process that is the same in each attempt while the group has its size.

    Imports ahead for one order are right for another one if both have the same.
    """
    own = {name: value for name, value in order["own"].items() if not is_per_attempt(name)}
    return order["kept"], own
