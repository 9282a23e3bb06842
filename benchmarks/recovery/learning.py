"""Whether the warm processes of `dtj run` have imported ahead what the script imports, as their logs have it."""

from __future__ import annotations

import os
from pathlib import Path

LEARNED_SECONDS = 240.0
"""Longest wait for `has_learned`. A pod that can import nothing of the script's ahead never has."""
LEARNED, LEFT_OUT = "imported for its next start", "warm process: no module"
BY_RANK, AHEAD = "it is imported ahead for each rank", "imported ahead for each rank, in"
"""The first of a package that no process of all ranks can hold, the second once the process of each rank has it."""


def has_learned(folder: Path, least: int = 0) -> bool:
    """Returns whether each warm process has imported what its script did, if that was more than torch.

    The first rank of each pod reports its imports after its first step. A module that is left out does not end the
    wait, because the warm process tries the others after it. `folder`: that of the trial. `least`: how many pods are
    known to report.
    """
    # Not rglob(), which raises when a training removes a folder meanwhile.
    reports = sum("imports.json" in files for _, _, files in os.walk(folder))
    return sum(map(_is_settled, _logs(folder))) >= max(reports, least)


def _is_settled(log: str) -> bool:
    """Returns whether no import is to come: each rank's own follow all others."""
    if BY_RANK not in log:
        return LEARNED in log
    return log.rfind(AHEAD) > max(log.rfind(LEARNED), log.rfind(BY_RANK))


def left_out(folder: Path) -> list[str]:
    """Returns the packages that a warm process could not import ahead."""
    lines = [line for text in _logs(folder) for line in text.splitlines() if LEFT_OUT in line]
    return sorted({line.partition(LEFT_OUT)[2].strip() for line in lines})


def _logs(folder: Path) -> list[str]:
    return [path.read_text(errors="replace") for path in sorted(folder.glob("run/*.log"))]
