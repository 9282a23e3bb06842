"""`dtj bench`: plans the trials, runs those that its folder does not have, and prints and writes the table."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from dtj import durations
from dtj.bench import chart, cores, link, plan
from dtj.bench.guard import guard
from dtj.bench.launch import Launcher, Options
from dtj.bench.ledger import FAILED, OK, TIMEOUT, Ledger
from dtj.bench.plan import Arms, Grid, Trial
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
    wanted = plan.links(flags.link)
    for one in wanted:
        if one != plan.NO_LINK:
            link.require(f"--link {one}")
    launcher = Launcher(options)
    with guard(launcher.tag, launcher.scratch):
        try:
            return _bench(flags, options, wanted, launcher)
        finally:
            shutil.rmtree(launcher.scratch, ignore_errors=True)


def _bench(flags: argparse.Namespace, options: Options, wanted: Sequence[str], launcher: Launcher) -> int:
    grid = Grid(
        scalings=plan.scalings(flags.scaling),
        links=wanted,
        batches=plan.numbers(flags.batch, "--batch", MOST_BATCH),
        worlds=plan.numbers(flags.world, "--world", plan.MOST_RANKS),
        arms=[],
        repeats=flags.repeats,
    )
    grid.check()
    facts, machine = launcher.facts(), cores.read()
    arms = plan.arms(flags.strategy, flags.arm, facts)
    grid = Grid(**{name: getattr(grid, name) for name in Grid.__slots__ if name != "arms"}, arms=arms.run)
    setup = _setup(options, facts, machine)
    folder = Path(flags.out)
    with Ledger(folder, setup, fresh=flags.fresh) as ledger:
        if flags.retry:
            ledger.drop_failures()
        _run(grid.trials(), ledger, launcher, machine, gpus=facts["gpus"])
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


def _setup(options: Options, facts: Mapping[str, Any], machine: cores.Cores) -> dict[str, Any]:
    """Returns what all trials of one folder must have in common."""
    return {
        "model": options.model,
        "steps": options.steps,
        "warmup": options.warmup,
        "threads": options.threads,
        "torch": facts["torch"],
        "device": cores.model() if facts["device"] == "cpu" else facts["device"],
        "cores": machine.whole,
    }


def _run(trials: Sequence[Trial], ledger: Ledger, launcher: Launcher, machine: cores.Cores, *, gpus: int) -> None:
    left = [trial for trial in trials if not ledger.has(trial)]
    with TrialProgress(len(trials), len(trials) - len(left)) as progress:
        for name, some in groupby(left, key=lambda trial: trial.cell.link):
            with _nodes(name) as nodes:
                for trial in some:
                    progress.begins(trial)
                    progress.ended(trial, _one(trial, ledger, launcher, machine, nodes, gpus))


def _one(
    trial: Trial, ledger: Ledger, launcher: Launcher, machine: cores.Cores, nodes: Sequence[str], gpus: int
) -> dict[str, Any]:
    world = trial.cell.world
    began = time.monotonic()
    outcome = launcher.run(trial.cell, nodes=nodes, cores=machine.of_ranks(world))
    about = {"cores": "own GPU" if 0 < world <= gpus else machine.share(world), "seconds": time.monotonic() - began}
    if nodes:
        about["tcp"] = link.congestion_control(nodes[0])
    if outcome.figures is not None:
        known = {name: value for name, value in outcome.figures.items() if name not in ("arm", "world")}
        return ledger.add(trial, OK, **about, **known)
    return ledger.add(trial, TIMEOUT if outcome.timed_out else FAILED, **about, reason=outcome.reason)


@contextmanager
def _nodes(name: str) -> Iterator[Sequence[str]]:
    """Makes the two nodes of a link; none without one."""
    if name == plan.NO_LINK:
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
