"""What a run came to: for a person, once it has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dtj import durations
from dtj.view.model import progress, restarts, steps
from dtj_contract import names
from dtj_core.plan.model import Object

MORE_METRICS = 4
SHORTEST_SECONDS = 0.005  # of a phase that is shown
PHASES = {
    "detect": "noticing",
    "stop": "stopping the workers",
    "schedule": "replacing pods",
    "rendezvous": "meeting again",
    "load": "importing and loading",
    "firstStep": "first step",
}
UNREPORTED = "no step was reported (State.report of dtj_trainer reports them)"


def summary(job: Object, *, seconds: float, run_dir: Path, checkpoint_dir: Path | None) -> list[str]:
    """The lines to print. `seconds` is the wall time of the run, all of it."""
    status = job.get("status", {})
    phase = str(status.get("phase", names.PENDING))
    reason = f" {status['reason']}" if phase == names.FAILED else ""
    state = f"{phase}{reason}" if phase in (names.COMPLETE, names.FAILED) else f"interrupted while {phase}"
    lines = ["", f"{job['metadata']['name']}: {state} after {durations.format_duration(seconds)}"]
    failure = next(iter((status.get("failures") or [])[-1:]), None) if phase != names.COMPLETE else None
    if phase == names.FAILED:
        lines += [f"  cause        {cause}"] if failure and (cause := _cause(failure)) else []
        lines.append(f"  {_message(status)}")
    results = [f"step {steps(job)}" if "step" in progress(job) else UNREPORTED]
    if progress(job).get("loss") is not None:
        results.append(f"loss {progress(job)['loss']:.4g}")
    results += [f"{name} {value:.4g}" for name, value in _quality(progress(job).get("metrics") or {})]
    lines.append(f"  reached      {', '.join(results)}")
    counts = status.get("restarts") or {}
    kinds = f"{counts.get('inPlace', 0)} in place, {counts.get('pod', 0)} with a new pod"
    lines.append(f"  restarts     {restarts(job)} ({kinds}); the last attempt was {status.get('attempt', 0)}")
    lines += [line for one in status.get("recoveries") or [] for line in _recovery(one)]
    if status.get("goodput") is not None:
        lines.append(f"  goodput      {100 * status['goodput']:.1f} % of the time went into steps that count")
    # A run that was cut short while it kept failing is explain by what failed; one that completed has overcome it.
    lines += _failure(failure) if failure else []
    lines.append(f"  logs         {run_dir}/*.log; status.json beside them")
    if checkpoint_dir:
        saved = (status.get("checkpoint") or {}).get("step")
        lines.append(
            f"  checkpoints  {checkpoint_dir}" + (f" (newest: step {saved})" if saved is not None else " (none written)")
        )
    return lines


def _quality(metrics: dict[str, float]) -> list[tuple[str, float]]:
    """The metrics that say how good the model is; if none does by its name, the first few. All are in status.json."""
    pairs = sorted(metrics.items())
    return [pair for pair in pairs if pair[0].startswith("validation") or "accuracy" in pair[0]] or pairs[:MORE_METRICS]


def _recovery(one: dict[str, Any]) -> list[str]:
    spent = one.get("seconds") or {}
    took = [(PHASES[phase], spent[phase]) for phase in names.RECOVERY_PHASES if spent.get(phase, 0.0) >= SHORTEST_SECONDS]
    phases = ", ".join(f"{phase} {durations.format_duration(seconds)}" for phase, seconds in took) or "no phase took any time"
    lost = one.get("lostSteps")
    back = (
        f"{lost} steps done again, from step {one.get('resumedStep')}"
        if lost is not None
        else "the resumed step was not reported"
    )
    return [
        f"  recovery     {one.get('reason')} ({one.get('kind')}) -> attempt {one.get('attempt')}: {back}",
        f"               {durations.format_duration(sum(spent.values()))}: {phases}"
        + ("" if "load" in spent else ", load unknown"),
    ]


def _failure(one: dict[str, Any]) -> list[str]:
    where = f"rank {one['rank']} in pod {one.get('pod')}" if one.get("rank") is not None else f"pod {one.get('pod')}"
    code = one.get("signal") or f"exit code {one.get('exitCode')}"
    tail = [f"    | {line}" for line in str(one.get("logTail") or "").splitlines()]
    return [f"  failure      {where}: {one.get('reason')}, {code}; its last lines:", *tail]


def _cause(one: dict[str, Any]) -> str:
    """The last line of the log tail: a traceback's error, or what argparse has against a flag; "" if there is none."""
    last = next((line.strip() for line in reversed(str(one.get("logTail") or "").splitlines()) if line.strip()), "")
    return last if one.get("rank") is None or not last else f"{last} (rank {one['rank']})"


def _message(status: Object) -> str:
    return next((str(c["message"]) for c in status.get("conditions", []) if c["type"] == names.FAILED), "")
