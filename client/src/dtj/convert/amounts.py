"""Times and resources of an sbatch script, in the units of Kubernetes. Pure."""

from __future__ import annotations

import re

from dtj.convert.sbatch import Allocation
from dtj.errors import InputError
from dtj_core.plan.model import Object


def resources(allocation: Allocation) -> Object:
    """Returns limits and requests of the container."""
    limits: Object = {}
    requests: Object = {}
    tasks, gpus = allocation.tasks or 1, allocation.gpus
    if gpus:
        limits["nvidia.com/gpu"] = gpus
    cpus = (allocation.number("--cpus-per-task") or 0) * tasks or (allocation.number("--cpus-per-gpu") or 0) * (
        gpus or 0
    )
    if "--mem-per-cpu" in allocation.options:
        cpus = cpus or tasks  # Slurm's default is one for each task
    if cpus:
        requests["cpu"] = str(cpus)
    for name, times in (("--mem", 1), ("--mem-per-cpu", cpus), ("--mem-per-gpu", gpus or 1)):
        if name in allocation.options and (
            memory := quantity(allocation.options[name], allocation.places[name], name, times)
        ):
            limits["memory"] = requests["memory"] = memory
    return {key: value for key, value in (("limits", limits), ("requests", requests)) if value}


def seconds(text: str, where: str) -> int | None:
    """Returns Slurm's `[D-]H:M:S`, `M:S`, `M` or `D-H` in seconds; None for no limit."""
    if text.upper() in ("UNLIMITED", "INFINITE", "0", "-1"):
        return None
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not match:
        raise InputError(f"{where} --time: write hours:minutes:seconds, not {text!r}")
    days, first, second, third = (int(part or 0) for part in match.groups())
    if match[1] is not None:
        return ((days * 24 + first) * 60 + second) * 60 + third
    if match[4] is not None:
        return (first * 60 + second) * 60 + third
    return first * 60 + second


def quantity(text: str, where: str, name: str, times: int = 1) -> str | None:
    """Returns Slurm's memory as a Kubernetes quantity; None for 0, all memory of the node."""
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", text.upper())
    if not match:
        raise InputError(f"{where} {name}: write a number with K, M, G or T, not {text!r}")
    return f"{int(match[1]) * times}{match[2] or 'M'}i" if int(match[1]) else None
