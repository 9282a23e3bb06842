"""`dtj tune`: from the command line to a sweep and back to an exit code."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.console import Console

from dtj import yaml_text
from dtj.errors import ClusterError, InputError, JobNotFound, NoCluster
from dtj.local import processes, template
from dtj.tune import render, spec
from dtj.tune.flags import is_of_cluster
from dtj.tune.planner import Limits, TrialState
from dtj.tune.spec import SweepDocument
from dtj_contract import names
from dtj_core import api


def command(flags: argparse.Namespace) -> int:
    """Runs the sweep of `flags.file`. Raises DtjError."""
    sweep = spec.load(flags.file)
    checked = render.check(sweep, flags.file)
    # With a runtime, the job's own spec may leave the number of its ranks open.
    is_open = checked.spec.runtime_ref is not None and checked.spec.processes_per_pod is None
    parallel = sweep.spec.parallel if is_open else render.parallel(sweep, render.ranks(checked), flags.file)
    if flags.dry_run:
        print(yaml_text.dump(render.sample(sweep)).rstrip())
        return 0
    if not is_of_cluster(flags):
        processes.require_linux()
        if (reference := checked.spec.runtime_ref) is not None:
            raise InputError(
                f"{flags.file}: spec.job.spec.runtimeRef: only a cluster has the runtime {reference.name}: write what "
                "it gives into spec.job.spec, or use --cluster"
            )
        template.check_spec((sweep.spec.job or {})["spec"], flags.file)
        if question := checked.spec.accelerator_question:
            raise InputError(f"{flags.file}: spec.job.{question}")
    elif flags.fresh:
        raise InputError(
            "--fresh removes no checkpoints of a cluster, and trials of the same names would resume from them: rename "
            "the sweep (metadata.name), and omit --fresh"
        )
    elif is_open and sweep.spec.max_ranks is not None:
        parallel = render.parallel(sweep, _ranks(sweep, checked, flags), flags.file)
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


def _ranks(sweep: SweepDocument, checked: api.DistributedTrainingJob, flags: argparse.Namespace) -> int:
    """Returns the ranks of a trial with the runtime that the cluster has."""
    from dtj.cluster.verbs import connect

    assert checked.spec.runtime_ref is not None
    name = checked.spec.runtime_ref.name
    try:
        runtime = connect(flags).json(f"/apis/{names.API_VERSION}/{names.RUNTIME_PLURAL}/{quote(name)}")
    except JobNotFound:
        raise InputError(
            f"{flags.file}: spec.job.spec.runtimeRef.name: there is no {names.RUNTIME_KIND} {name}: kubectl get "
            f"{names.RUNTIME_SHORT_NAME} lists those that exist"
        ) from None
    except NoCluster:
        raise
    except ClusterError as error:
        raise InputError(
            f"{flags.file}: spec.maxRanks: the ranks of a trial are those of the runtime {name}, which can't be read "
            f"({error}): write processesPerPod in spec.job.spec"
        ) from error
    return render.ranks(render.with_runtime(sweep, runtime.get("spec") or {}, flags.file))


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
