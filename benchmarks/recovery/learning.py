"""Whether the warm processes of `dtj run` have imported ahead what the script imports, as their logs have it."""

from __future__ import annotations

from pathlib import Path

LEARNED_SECONDS = 120.0
"""Longest wait for `has_learned`. A pod that can import nothing of the script's ahead never has."""
LEARNED, LEFT_OUT = "imported for its next start", "warm process: no module"


def has_learned(folder: Path, least: int = 0) -> bool:
    """Returns whether each warm process has imported what its script did, if that was more than torch.

    The first rank of each pod reports its imports after its first step. A module that is left out does not end the
    wait, because the warm process tries the others after it. `folder`: that of the trial. `least`: how many pods are
    known to report.
    """
    reports = sum(1 for _ in folder.rglob("imports.json"))
    return sum(LEARNED in text for text in _logs(folder)) >= max(reports, least)


def left_out(folder: Path) -> list[str]:
    """Returns the packages that a warm process could not import ahead."""
    lines = [line for text in _logs(folder) for line in text.splitlines() if LEFT_OUT in line]
    return sorted({line.partition(LEFT_OUT)[2].strip() for line in lines})


def _logs(folder: Path) -> list[str]:
    return [path.read_text(errors="replace") for path in sorted(folder.glob("run/recovery-*.log"))]
