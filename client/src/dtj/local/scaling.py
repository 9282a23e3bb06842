"""The size of a running local job: `dtj scale` asks for it by a file in the run's folder."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from pathlib import Path

from dtj.errors import InputError, LocalRunError
from dtj.field_hints import explain
from dtj.local.conditions import finished
from dtj_contract import names
from dtj_core import api
from dtj_core.plan.model import Object

STATUS = "status.json"
REQUEST = "scale.json"
ANSWER_SECONDS = 20.0  # the run looks several times a second
LOOK_SECONDS = 0.05


def command(flags: argparse.Namespace) -> int:
    """Asks a local run for another number of pods, and waits until it has taken the request. Raises DtjError."""
    folder, replicas = Path(flags.folder), flags.replicas
    job = _read_job(folder)
    if finished(job):
        raise LocalRunError(f"{job['metadata']['name']} has finished; dtj run starts it again")
    name, before = job["metadata"]["name"], job["spec"].get("replicas", 1)
    try:
        if scaled_spec(job, replicas) == job["spec"]:
            print(f"{name} unchanged: it has {replicas} pods")
            return 0
        aside = folder / f".{REQUEST}-{os.getpid()}"
        aside.write_text(json.dumps({"replicas": replicas}))
        os.replace(aside, folder / REQUEST)
        _wait_until_taken(folder)
    except OSError as error:
        raise LocalRunError(f"can't write {error.filename}: {error.strerror}") from error
    print(f"{name} scaled from {before} to {replicas} pods")
    return 0


def take_request(job: Object, folder: Path) -> list[str]:
    """Writes the size that was asked for into `job`. Returns a line to show, or none."""
    taken = folder / f".{REQUEST}-taken"
    try:
        os.replace(folder / REQUEST, taken)
        replicas = json.loads(taken.read_text())["replicas"]
        taken.unlink()
    except FileNotFoundError:
        return []
    except (OSError, ValueError, LookupError, TypeError) as error:
        return [f"dtj scale: {folder / REQUEST} can't be read: {error}"]
    before = job["spec"].get("replicas", 1)
    try:
        job.update(api.scaled(job, replicas))
    except api.InvalidJob as error:
        return [f"dtj scale: {violation}" for violation in error.violations]
    return [f"dtj scale: {before} to {replicas} pods"]


def scaled_spec(job: Object, replicas: int) -> Object:
    """Returns the spec with another number of pods. Raises InputError with the API server's message."""
    try:
        spec: Object = api.scaled(job, replicas)["spec"]
    except api.InvalidJob as error:
        lines = (f"--replicas {replicas}: {explain(violation, job)}" for violation in error.violations)
        raise InputError("\n".join(lines)) from error
    return spec


def _read_job(folder: Path) -> Object:
    try:
        job: Object = json.loads((folder / STATUS).read_text())
    except OSError as error:
        raise InputError(
            f"{folder}: no folder of a local run, as .dtj/runs/NAME-TIME; on a cluster: "
            "kubectl scale dtj/NAME --replicas=N"
        ) from error
    except ValueError as error:
        raise InputError(f"{folder / STATUS}: no JSON: {error}") from error
    if not isinstance(job, dict) or job.get("kind") != names.KIND:
        raise InputError(f"{folder / STATUS}: holds no {names.KIND}")
    return job


def _wait_until_taken(folder: Path) -> None:
    """Waits until the run has taken the request. Raises LocalRunError if the run has ended."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while (folder / REQUEST).exists():
        if time.monotonic() > deadline or finished(_read_job(folder)):
            with contextlib.suppress(FileNotFoundError):  # else the run has taken the request after all
                (folder / REQUEST).unlink()
                raise LocalRunError(f"the run of {folder} has ended, or did not answer within {ANSWER_SECONDS:g} s")
        time.sleep(LOOK_SECONDS)
