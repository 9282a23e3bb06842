"""The tables of the benchmarks that compare arms: many lost pods, and the ladder."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.kind import ladder, many
from benchmarks.ledger import Trial
from benchmarks.report import markdown
from dtj_contract.names import RECOVERY_PHASES

MANY, LADDER = "many", "ladder"
TITLES = {
    MANY: f"{many.LOST} of {many.PODS} pods deleted at once",
    LADDER: f"A rank of {ladder.RANKS} is lost: the answers of the ladder",
}
Rows = Mapping[str, Sequence[Trial]]
RATIO = 1.2
FLOORS = {"the same pods": many.SAME_TEMPLATE, "the lightest pods": many.BARE}
"""StatefulSets without a job, by the heading of the ratio to each. The target is that to the first."""
UNLIKE = {(many.IN_VOLUME, many.SAME_TEMPLATE)}
"""Arms whose pods are not those of a floor."""
GROUPS = (many.OURS, many.IN_VOLUME)


def render(key: str, found: Mapping[str, Any]) -> str:
    """Returns one table as Markdown."""
    rows: dict[str, list[Trial]] = {}
    for trial in found["trials"]:
        rows.setdefault(trial["arm"], []).append(trial)
    return {MANY: _many, LADDER: _ladder}[key](rows, found["circumstances"])


def seconds(trials: Sequence[Trial]) -> list[float]:
    """Returns the times of the trials that ended."""
    return [trial["seconds"] for trial in trials if "seconds" in trial]


def _many(rows: Rows, circumstances: str) -> str:
    out = []
    for arm in many.ARMS:
        if arm not in rows:
            continue
        beside = [[] if (arm, floor) in UNLIKE else _ratios(rows, arm, floor) for floor in FLOORS.values()]
        hangs = sum(1 for trial in rows[arm] if trial.get("hang"))
        attempts = max((trial.get("attempts", 0) for trial in rows[arm]), default=0)
        out.append([
            arm, *_figures(rows[arm]), *(f"{statistics.median(ratios):.2f}x" if ratios else "" for ratios in beside),
            str(attempts) if arm in GROUPS else "", str(hangs), _many_targets(arm, beside[0], attempts, hangs),
        ])  # fmt: skip
    columns = {
        "pods of": "left", "trials": "right", "median s": "right", "worst s": "right",
        **{f"beside {floor}": "right" for floor in FLOORS},
        "most attempts": "right", "hangs": "right", "target": "left",
    }  # fmt: skip
    return markdown(TITLES[MANY], columns, out, _phases(rows.get(many.OURS, [])), circumstances)


def _ratios(rows: Rows, arm: str, floor: str) -> list[float]:
    """Returns the ratio to the floor of each trial that both have."""
    least = {trial["trial"]: trial["seconds"] for trial in rows.get(floor, []) if "seconds" in trial}
    return [t["seconds"] / least[t["trial"]] for t in rows[arm] if "seconds" in t and t["trial"] in least]


def _many_targets(arm: str, ratios: Sequence[float], attempts: int, hangs: int) -> str:
    if arm not in GROUPS:
        return ""
    checks = {f"≤ {RATIO:g}x": statistics.median(ratios) <= RATIO} if ratios else {}
    checks |= {"1 attempt": attempts == 1, "no hang": not hangs}
    return "; ".join(f"{name}: {'met' if met else 'missed'}" for name, met in checks.items())


def _phases(trials: Sequence[Trial]) -> str:
    """Returns a line with the median of each phase of the recoveries."""
    found = [one["seconds"] for trial in trials for one in trial.get("recoveries", [])]
    parts = [
        f"`{phase}` {statistics.median(values):.2f} s"
        for phase in RECOVERY_PHASES
        if (values := [each[phase] for each in found if each.get(phase) is not None])
    ]
    return f"Medians of the phases in the status: {', '.join(parts)}." if parts else ""


def _ladder(rows: Rows, circumstances: str) -> str:
    out = []
    for arm, (claim, holds) in CLAIMS.items():
        if arm not in rows:
            continue
        kept = [trial["kept"] for trial in rows[arm] if "kept" in trial]
        lost = [trial["lost_steps"] for trial in rows[arm] if "lost_steps" in trial]
        out.append([
            arm, *_figures(rows[arm]), f"{statistics.median(kept):.0f} of {_pods(arm)}" if kept else "",
            f"{max(lost)}" if lost else "", str(sum(1 for trial in rows[arm] if trial.get("hang"))),
            f"{claim}: {'holds' if holds(rows) else 'does not hold'}",
        ])  # fmt: skip
    columns = {
        "answer": "left", "trials": "right", "median s": "right", "worst s": "right", "pods kept": "right",
        "most steps lost": "right", "hangs": "right", "claim": "left",
    }  # fmt: skip
    return markdown(TITLES[LADDER], columns, out, circumstances)


def _pods(arm: str) -> int:
    return ladder.RANKS + (arm == ladder.DELETED_SPARE)


def _figures(trials: Sequence[Trial]) -> list[str]:
    values = seconds(trials)
    if not values:
        return [str(len(trials)), "", ""]
    return [str(len(trials)), f"{statistics.median(values):.2f}", f"{max(values):.2f}"]


def _kept(arm: str, count: int) -> Callable[[Rows], bool]:
    """Returns whether each trial of an arm kept so many pods."""
    return lambda rows: all(trial.get("kept") == count for trial in rows[arm])


def _faster(arm: str, *others: str) -> Callable[[Rows], bool]:
    """Returns whether the worst trial of an arm is faster than the best one of each other."""

    def holds(rows: Rows) -> bool:
        own = seconds(rows[arm])
        return len(own) == len(rows[arm]) and all(
            max(own) < min(seconds(rows[other])) for other in others if other in rows and seconds(rows[other])
        )

    return holds


SICK_SECONDS = 10.0


def _left(rows: Rows) -> bool:
    """Returns whether each job has left a sick node in time, without a loss."""
    floor = statistics.median(seconds(rows.get(ladder.ELSEWHERE, [])) or [0.0])
    return all(
        trial.get("left")
        and trial["seconds"] <= floor + SICK_SECONDS
        and trial["lost_steps"] == 0
        and not any(one["counted"] for one in trial["recoveries"])
        for trial in rows[ladder.SICK]
    )


CLAIMS: dict[str, tuple[str, Callable[[Rows], bool]]] = {
    ladder.IN_PLACE: (
        "each trial is faster than every trial of any other answer",
        _faster(ladder.IN_PLACE, ladder.ELSEWHERE, ladder.ALL, ladder.JOBSET_IN_PLACE, ladder.JOBSET_RECREATE),
    ),
    ladder.DELETED_SPARE: (
        "each trial is faster than every one without a spare",
        _faster(ladder.DELETED_SPARE, ladder.DELETED),
    ),
    ladder.DELETED: ("the other pods stay", _kept(ladder.DELETED, ladder.RANKS - 1)),
    ladder.ELSEWHERE: (
        "each trial is faster than every recreation of all pods by JobSet",
        _faster(ladder.ELSEWHERE, ladder.JOBSET_RECREATE),
    ),
    ladder.SICK: (
        f"at most {SICK_SECONDS:g} s more than the median of another pod; no step lost, no restart counted",
        _left,
    ),
    ladder.ALL: (
        "each trial is faster than every recreation of all pods by JobSet",
        _faster(ladder.ALL, ladder.JOBSET_RECREATE),
    ),
    ladder.JOBSET_IN_PLACE: ("all pods stay", _kept(ladder.JOBSET_IN_PLACE, ladder.RANKS)),
    ladder.JOBSET_RECREATE: ("no pod stays", _kept(ladder.JOBSET_RECREATE, 0)),
}
"""The claim of each row of the ladder, and whether its trials bear it out."""
