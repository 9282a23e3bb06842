"""`dtj tune`: from the command line to a sweep and back to an exit code."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from dtj import yaml_text
from dtj.errors import InputError
from dtj.local import processes, template
from dtj.tune import render, spec
from dtj.tune.flags import is_of_cluster
from dtj.tune.planner import Limits, TrialState
from dtj.tune.spec import SweepDocument


def command(flags: argparse.Namespace) -> int:
    """Runs the sweep of `flags.file`. Raises DtjError."""
    sweep = spec.load(flags.file)
    checked = render.check(sweep, flags.file)
    ranks = checked.spec.replicas * checked.spec.processes
    parallel = render.parallel(sweep, ranks, flags.file)
    if flags.dry_run:
        lows = {name: render.example(one) for name, one in sweep.spec.parameters.items()}
        print(yaml_text.dump(render.trial_job(sweep, 0, lows)).rstrip())
        return 0
    if not is_of_cluster(flags):
        processes.require_linux()
        template.check_spec((sweep.spec.job or {})["spec"], flags.file)
        if question := checked.spec.accelerator_question:
            raise InputError(f"{flags.file}: spec.job.{question}")
    elif flags.fresh:
        raise InputError(
            "--fresh removes no checkpoints of a cluster, and trials of the same names would resume from them: rename "
            "the sweep (metadata.name), and omit --fresh"
        )
    from dtj.tune import fresh
    from dtj.tune.driver import STORAGE, held, limits_of
    from dtj.tune.study import StudyStore  # reports how to install Optuna where it is missing

    folder = Path(flags.dir or f".dtj/sweeps/{sweep.name}").absolute()
    with held(folder):
        if flags.fresh:
            fresh.clear(folder, sweep)
        _keep_from_git(folder)
        store = StudyStore(folder / STORAGE, sweep)
        return _run(sweep, limits_of(sweep, parallel), store, _jobs(sweep, store, folder, flags), folder, flags)


def _jobs(sweep: SweepDocument, store: Any, folder: Path, flags: argparse.Namespace) -> Any:
    if is_of_cluster(flags):
        from dtj.cluster.verbs import connect
        from dtj.tune.cluster_jobs import ClusterTrialJobs

        return ClusterTrialJobs(connect(flags), sweep, store.uid, folder)
    from dtj.tune.local_jobs import LocalTrialJobs

    return LocalTrialJobs(folder, sweep.spec.objective.metric)


def _run(sweep: SweepDocument, limits: Limits, store: Any, jobs: Any, folder: Path, flags: argparse.Namespace) -> int:
    from dtj.tune.driver import PAGE, drive
    from dtj.tune.view import PlainSweepView, TableSweepView, headline, parameters

    console = Console()
    plain = flags.plain or not console.is_terminal or console.is_dumb_terminal
    with PlainSweepView() if plain else TableSweepView(console) as view:
        result = drive(sweep, limits, store, jobs, folder, view)
    print(headline(result.state))
    if best := result.state.best:
        print(f"  parameters  {parameters(best.params)}")
        print(f"  best        {_shown(folder / 'best')}")
    print(f"  page        {_shown(folder / PAGE)}")
    if result.signal is not None:
        print(f"stopped; `dtj tune {flags.file}` continues the sweep", file=sys.stderr)
        return 128 + result.signal
    print(f"  ended       {result.reason}")
    return 0 if result.state.count(TrialState.COMPLETE) else 1


def _keep_from_git(folder: Path) -> None:
    if not (folder / ".gitignore").exists():
        (folder / ".gitignore").write_text("*\n")


def _shown(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
