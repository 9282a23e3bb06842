"""`dtj bench`: plans the trials, runs those that its folder does not have, and prints and writes the table."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from dtj import durations
from dtj.bench import chart, cores, link, plan
from dtj.bench.guard import guard
from dtj.bench.launch import Launcher, Options, Outcome
from dtj.bench.ledger import FAILED, OK, TIMEOUT, Ledger
from dtj.bench.plan import Arms, Cell, Grid, Trial
from dtj.bench.progress import TrialProgress
from dtj.bench.summary import Row, rows
from dtj.bench.table import as_csv, document, notes, table
from dtj.errors import InputError, LocalRunError
from dtj.local.processes import require_linux

MOST_BATCH = 1_000_000


def command(flags: argparse.Namespace) -> int:
    """Runs the bench. Returns 0, or 1 if no trial ended well. Raises DtjError."""
    require_linux()
    options = _options(flags)
    grid = Grid(
        scalings=plan.scalings(flags.scaling),
        links=plan.links(flags.link),
        batches=plan.numbers(flags.batch, "--batch", MOST_BATCH),
        worlds=plan.numbers(flags.world, "--world", plan.MOST_RANKS),
        arms=[],
        repeats=flags.repeats,
    )
    grid.check()
    if plan.CLUSTER in grid.links:
        return _on_cluster(flags, options, grid)
    if flags.image is not None:
        raise InputError(f"--image {flags.image}: only with --link cluster; here the ranks have --python")
    for one in filter(plan.is_shaped, grid.links):
        link.require(f"--link {one}")
    launcher, machine = Launcher(options), cores.read()
    with guard(launcher.tag, launcher.scratch):
        try:
            facts = launcher.facts()
            gpus = facts["gpus"]

            def share(world: int) -> str:
                return "own GPU" if world <= gpus else machine.share(world)

            setup = _setup(options, facts) | {"cores": machine.whole}
            return _bench(flags, grid, facts, setup, Place(launcher, machine.of_ranks, share))
        finally:
            shutil.rmtree(launcher.scratch, ignore_errors=True)


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Makes SIGTERM end the bench as Ctrl-C does, so that the job of the trial is deleted."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _on_cluster(flags: argparse.Namespace, options: Options, grid: Grid) -> int:
    from dtj.bench.cluster import ClusterLauncher, reject_torchrun
    from dtj.cluster.verbs import connect

    if flags.image is None:
        raise InputError("--image: required with --link cluster; write one with dtj-trainer, such as dtj-trainer:cpu")
    reject_torchrun(flags.arm)
    cluster = connect(flags)
    launcher = ClusterLauncher(cluster, flags.image, options)
    with _stopped_by_sigterm():
        facts, share = launcher.facts(), launcher.share()
        setup = _setup(options, facts) | {"image": flags.image, "cluster": cluster.host}
        return _bench(flags, grid, facts, setup, Place(launcher, lambda world: [], lambda world: share))


@dataclass(frozen=True, slots=True)
class Place:
    """Where ranks run: this machine, or a cluster."""

    launcher: Runs
    cores: Callable[[int], list[int]]
    """The CPU of each rank of so many."""
    share: Callable[[int], str]
    """The `cores` of a trial with so many ranks."""


class Runs(Protocol):
    """Starts the ranks of a trial."""

    def run(self, cell: Cell, *, nodes: Sequence[str], cores: Sequence[int]) -> Outcome: ...


def _bench(
    flags: argparse.Namespace, grid: Grid, facts: Mapping[str, Any], setup: Mapping[str, Any], place: Place
) -> int:
    """Runs the trials that are missing, and shows all."""
    arms = plan.arms(flags.strategy, flags.arm, facts)
    grid = replace(grid, arms=arms.run)
    folder = Path(flags.out)
    with Ledger(folder, setup, fresh=flags.fresh) as ledger:
        if flags.retry:
            ledger.drop_failures()
        _run(grid.trials(), ledger, place)
        found = rows(grid.cells(), ledger.records)
    files = _write(folder, found, arms, setup)
    print("\n".join([table(found, arms.absent), "", *notes(found, arms.absent, setup), *map(str, files)]))
    return 0 if any(row.trials for row in found) else 1


def _options(flags: argparse.Namespace) -> Options:
    for name, least in (("repeats", 1), ("steps", 2), ("warmup", 1), ("threads", 1)):
        if getattr(flags, name) < least:
            raise InputError(f"--{name} {getattr(flags, name)}: write {least} or more")
    timeout = durations.parse(flags.timeout, "--timeout")
    if timeout <= 0:
        raise InputError(f"--timeout {flags.timeout}: write a duration above 0, such as 10m")
    return Options(
        python=shutil.which(flags.python) or flags.python,
        model=flags.model,
        steps=flags.steps,
        warmup=flags.warmup,
        threads=flags.threads,
        timeout=timeout,
    )


def _setup(options: Options, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what all trials of one folder must have in common."""
    return {
        "model": options.model,
        "steps": options.steps,
        "warmup": options.warmup,
        "threads": options.threads,
        "torch": facts["torch"],
        "device": facts["device"],
    }


def _run(trials: Sequence[Trial], ledger: Ledger, place: Place) -> None:
    left = [trial for trial in trials if not ledger.has(trial)]
    with TrialProgress(len(trials), len(trials) - len(left)) as progress:
        for name, some in groupby(left, key=lambda trial: trial.cell.link):
            with _nodes(name) as nodes:
                for trial in some:
                    progress.begins(trial)
                    progress.ended(trial, _one(trial, ledger, place, nodes))


def _one(trial: Trial, ledger: Ledger, place: Place, nodes: Sequence[str]) -> dict[str, Any]:
    world = trial.cell.world
    began = time.monotonic()
    outcome = place.launcher.run(trial.cell, nodes=nodes, cores=place.cores(world))
    about: dict[str, Any] = {"cores": place.share(world), "seconds": time.monotonic() - began}
    if nodes:
        about["tcp"] = link.congestion_control(nodes[0])
    if outcome.figures is not None:
        known = {name: value for name, value in outcome.figures.items() if name not in ("arm", "world")}
        return ledger.add(trial, OK, **about, **known)
    return ledger.add(trial, TIMEOUT if outcome.timed_out else FAILED, **about, reason=outcome.reason)


@contextmanager
def _nodes(name: str) -> Iterator[Sequence[str]]:
    """Makes the two nodes of a shaped link; none without one."""
    if not plan.is_shaped(name):
        yield ()
    else:
        with link.link(plan.rate(name)) as pair:
            yield pair


def _write(folder: Path, found: Sequence[Row], arms: Arms, setup: Mapping[str, Any]) -> list[Path]:
    """Writes the summary and the plots. Returns the files."""
    texts = {
        "results.json": json.dumps(document(found, arms.absent, setup), indent=1) + "\n",
        "results.csv": as_csv(found),
    }
    try:
        for name, text in texts.items():
            part = folder / f"{name}.part"
            part.write_text(text, encoding="utf-8")
            os.replace(part, folder / name)
        return [*(folder / name for name in texts), *chart.write(folder, found)]
    except OSError as error:
        raise LocalRunError(f"can't write into {folder}: {error.strerror}") from error
