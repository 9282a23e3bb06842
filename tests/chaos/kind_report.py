"""Reads the pods of a kind cluster, and renders the measurements of its chaos. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Any

from dtj_contract.names import RECOVERY_PHASES

Object = dict[str, Any]

NEW_AGENT, WARM = "listens on port", "workers are forked from it"
"""Lines of an agent that has started, and of one whose warm process is ready."""


def staying(pods: Iterable[Object]) -> dict[str, str]:
    """Returns the uids of the pods that are not terminating, by name."""
    return {
        pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods if "deletionTimestamp" not in pod["metadata"]
    }


def count_ready(pods: Iterable[Object]) -> int:
    """Returns how many pods are ready. A pod that terminates may still be Ready, and is none of them."""
    conditions = (
        pod.get("status", {}).get("conditions", []) for pod in pods if "deletionTimestamp" not in pod["metadata"]
    )
    return sum(any(c["type"] == "Ready" and c["status"] == "True" for c in found) for found in conditions)


def is_warm(log: str) -> bool:
    """Returns whether the last agent of a pod's log can fork workers: a spare that still imports is no spare yet."""
    began = log.rfind(NEW_AGENT)
    return began >= 0 and WARM in log[began:]


def table(seconds: dict[str, list[float]]) -> str:
    """Returns the measurements as a Markdown table."""
    rows = ["| fault | trials | p50 | p95 | worst |", "|---|---|---|---|---|"]
    return "\n".join([*rows, *(f"| {name} | {len(found)} | {_figures(found)} |" for name, found in seconds.items())])


def phase_table(phases: dict[str, dict[int, Object]]) -> str:
    """Returns the seconds of each phase of the recoveries, by fault, as a Markdown table."""
    rows = ["| fault | phase | recoveries | p50 | p95 | worst |", "|---|---|---|---|---|---|"]
    for fault, recoveries in phases.items():
        for phase in RECOVERY_PHASES:
            found = [seconds[phase] for seconds in recoveries.values() if phase in seconds]
            if found:
                rows.append(f"| {fault} | {phase} | {len(found)} | {_figures(found)} |")
    return "\n".join(rows)


def _figures(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    high = ordered[math.ceil(0.95 * len(ordered)) - 1]
    return " | ".join(f"{value:.2f} s" for value in (statistics.median(ordered), high, ordered[-1]))
