"""The result of a finished run, for a person."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dtj import durations
from dtj.view.model import is_counted, progress, reached, restarts
from dtj_contract import names
from dtj_core.plan.model import Object

MORE_METRICS = 4
SHORTEST_SECONDS = 0.005  # shorter phases are omitted
PHASES = {
    "detect": "detecting",
    "stop": "stopping the workers",
    "schedule": "replacing pods",
    "rendezvous": "rendezvous",
    "load": "importing and loading",
    "firstStep": "first step",
}
SOURCES = {
    "memory": ", in memory",
    "replica": ", in a replica's memory",
    "partner": ", in a partner's memory",
}
UNREPORTED = "steps unknown: no optimizer step was seen, and the script reports none (State.report of dtj_trainer does)"


def summary(job: Object, *, seconds: float, run_dir: Path, checkpoint_dir: Path | None) -> list[str]:
    """Returns the lines to print. `seconds` is the wall time of the whole run."""
    status = job.get("status", {})
    phase = str(status.get("phase", names.PENDING))
    reason = f" {status['reason']}" if phase == names.FAILED else ""
    state = f"{phase}{reason}" if phase in (names.COMPLETE, names.FAILED) else f"interrupted while {phase}"
    lines = ["", f"{job['metadata']['name']}: {state} after {durations.format_duration(seconds)}"]
    failure = next(iter((status.get("failures") or [])[-1:]), None) if phase != names.COMPLETE else None
    if phase == names.FAILED:
        lines += [f"  cause        {cause}"] if failure and (cause := _cause(failure)) else []
        lines.append(f"  {_message(status)}")
    results = [_reached(job)]
    if progress(job).get("loss") is not None:
        results.append(f"loss {progress(job)['loss']:.4g}")
    results += [f"{name} {value:.4g}" for name, value in _quality(progress(job).get("metrics") or {})]
    lines.append(f"  reached      {', '.join(results)}")
    counts = status.get("restarts") or {}
    kinds = f"{counts.get('inPlace', 0)} in place, {counts.get('pod', 0)} with a new pod"
    lines.append(f"  restarts     {restarts(job)} ({kinds}); the last attempt was {status.get('attempt', 0)}")
    lines += [line for recovery in status.get("recoveries") or [] for line in _recovery(recovery)]
    if status.get("goodput") is not None:
        # Only files in the checkpoint folder show how much a broken attempt has kept.
        bound = "at least " if is_counted(job) and restarts(job) else ""
        lines.append(f"  goodput      {bound}{100 * status['goodput']:.1f} % of the time was spent on steps that count")
    # The last failure explains a run that was interrupted while it kept failing. A completed run
    # has overcome its failures.
    lines += _failure(failure) if failure else []
    lines.append(f"  logs         {run_dir}/*.log; status.json beside them")
    lines.append(f"  timeline     dtj report {run_dir}")
    if checkpoint_dir:
        saved = (status.get("checkpoint") or {}).get("step")
        lines.append(
            f"  checkpoints  {checkpoint_dir}"
            + (f" (newest: step {saved})" if saved is not None else " (no dtj checkpoint)")
        )
    return lines


def _reached(job: Object) -> str:
    if "step" not in progress(job):
        return UNREPORTED
    return reached(job) + (" in the last attempt" if is_counted(job) else "")


def _quality(metrics: dict[str, float]) -> list[tuple[str, float]]:
    """Returns the metrics of model quality; if no name shows any, the first few metrics.

    status.json has all of them.
    """
    pairs = sorted(metrics.items())
    return [pair for pair in pairs if pair[0].startswith("validation") or "accuracy" in pair[0]] or pairs[:MORE_METRICS]


def _recovery(recovery: dict[str, Any]) -> list[str]:
    spent = recovery.get("seconds") or {}
    took = [
        (PHASES[phase], spent[phase]) for phase in names.RECOVERY_PHASES if spent.get(phase, 0.0) >= SHORTEST_SECONDS
    ]
    phases = (
        ", ".join(f"{phase} {durations.format_duration(seconds)}" for phase, seconds in took)
        or "no phase took any time"
    )
    lost = recovery.get("lostSteps")
    back = (
        f"{lost} {'step' if lost == 1 else 'steps'} repeated from step {recovery.get('resumedStep')}"
        + SOURCES.get(str(recovery.get("source")), "")
        if lost is not None
        else "the resumed step was not reported"
    )
    cause = f"{recovery.get('reason')} ({recovery.get('kind')})"
    if "toReplicas" in recovery:
        cause += f", {recovery.get('fromReplicas')} -> {recovery['toReplicas']} pods"
    return [
        f"  recovery     {cause} -> attempt {recovery.get('attempt')}: {back}",
        f"               {durations.format_duration(sum(spent.values()))}: {phases}"
        + ("" if "load" in spent else ", load unknown"),
    ]


def _failure(failure: dict[str, Any]) -> list[str]:
    where = (
        f"rank {failure['rank']} in pod {failure.get('pod')}"
        if failure.get("rank") is not None
        else f"pod {failure.get('pod')}"
    )
    code = failure.get("signal") or f"exit code {failure.get('exitCode')}"
    tail = [f"    | {line}" for line in str(failure.get("logTail") or "").splitlines()]
    return [f"  failure      {where}: {failure.get('reason')}, {code}; its last lines:", *tail]


def _cause(failure: dict[str, Any]) -> str:
    """Returns the last line of the log tail, or "" if there is none.

    The last line is a traceback's error, or argparse's complaint about a flag.
    """
    last = next((line.strip() for line in reversed(str(failure.get("logTail") or "").splitlines()) if line.strip()), "")
    return last if failure.get("rank") is None or not last else f"{last} (rank {failure['rank']})"


def _message(status: Object) -> str:
    return next((str(c["message"]) for c in status.get("conditions", []) if c["type"] == names.FAILED), "")
