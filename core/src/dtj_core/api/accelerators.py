"""Accelerators of the trainer container: how many ranks they make, and what the user must decide.

Pure functions of the raw container and of the spec's own answers.
"""

from __future__ import annotations

import re
from typing import Any

# One rank each, with nccl; PyTorch calls ROCm's RCCL "nccl" too.
GPUS = ("nvidia.com/gpu", "amd.com/gpu")
# One rank each, with a backend that the job names: nccl does not know them, or can't connect two
# MIG slices of one GPU.
ONE_RANK_EACH = re.compile(r"nvidia\.com/mig-[0-9a-z.]+(?<!\.shared)|habana\.ai/gaudi\d?|gpu\.intel\.com/(i915|xe)")
OTHER_ACCELERATORS = re.compile(
    r"nvidia\.com/(mig-|gpu[.-]).+|amd\.com/.+|gpu\.intel\.com/.+|habana\.ai/gaudi.*|aws\.amazon\.com/neuron.*"
    r"|google\.com/tpu|huawei\.com/Ascend.*|cambricon\.com/.+|mthreads\.com/.+|metax-tech\.com/.+"
)
# Name of a resource as in a container's limits, with or without a domain.
RESOURCE_NAME = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
_COUNT = re.compile("[0-9]{1,9}")

Container = dict[str, Any]


def count_gpus(container: Container) -> int:
    """Returns the number of nvidia.com/gpu or amd.com/gpu that the container requests."""
    for resources in _requested(container):
        for gpu in GPUS:
            if _COUNT.fullmatch(amount := str(resources.get(gpu))):
                return int(amount)
    return 0


def count_ranks(container: Container, source: str | None) -> int:
    """Returns the number of ranks that the container's resources make; 0 if none of them does.

    `source`: the resource that spec.processesFrom names. Without it, known accelerators count.
    """
    if source is not None:
        return _amount(container, source)
    slices = _countable(container)
    return count_gpus(container) or (_amount(container, slices[0]) if len(slices) == 1 else 0)


def find_undecided(container: Container, ranks: int | None, source: str | None, backend: str) -> str | None:
    """Returns the accelerator whose use the job must decide; None if there is none.

    `ranks`: spec.processesPerPod. `source`: spec.processesFrom. `backend`: spec.backend.
    """
    if ranks is None and source is not None and not _amount(container, source):
        return source
    name = _find_other(container)
    if name is None or (backend != "auto" and not _lacks_ranks(container, ranks, source)):
        return None
    return name


def describe_undecided(container: Container, ranks: int | None, source: str | None, backend: str) -> str | None:
    """Returns what the job must decide and how; None if it has decided everything."""
    name = find_undecided(container, ranks, source, backend)
    if name is None:
        return None
    if ranks is None and name == source and not _amount(container, source):
        return (
            f"spec.processesFrom names {source}, and the trainer container requests no whole number of it: request it "
            "in spec.resources.limits, or correct the name"
        )
    missing = ["spec.processesPerPod (or spec.processesFrom)"] if _lacks_ranks(container, ranks, source) else []
    missing += ["spec.backend"] if backend == "auto" else []
    return f"the trainer container requests {name}, for which there is no default: set {' and '.join(missing)}"


def _lacks_ranks(container: Container, ranks: int | None, source: str | None) -> bool:
    return ranks is None and source is None and (count_gpus(container) > 0 or len(_countable(container)) != 1)


def _find_other(container: Container) -> str | None:
    names = (name for each in _requested(container) for name, amount in each.items() if str(amount) != "0")
    return next((name for name in names if name not in GPUS and OTHER_ACCELERATORS.fullmatch(name)), None)


def _countable(container: Container) -> list[str]:
    names = {name for each in _requested(container) for name in each if ONE_RANK_EACH.fullmatch(name)}
    return sorted(name for name in names if _amount(container, name))


def _amount(container: Container, name: str) -> int:
    """Returns how many of a resource the container requests; 0 if that is no whole number."""
    found = (str(resources[name]) for resources in _requested(container) if name in resources)
    return next((int(amount) for amount in found if _COUNT.fullmatch(amount)), 0)


def _requested(container: Container) -> list[Container]:
    """Returns limits and requests of the container."""
    resources = container.get("resources")
    found = [resources.get(kind) for kind in ("limits", "requests")] if isinstance(resources, dict) else []
    return [each for each in found if isinstance(each, dict)]
