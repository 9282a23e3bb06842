"""`dtj report`: finds a job's status and logged steps, and writes the report."""

from __future__ import annotations

import argparse
import heapq
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from dtj.errors import ClusterError, InputError, LocalRunError
from dtj.report.evidence import Evidence, evidence
from dtj.report.page import page
from dtj.report.png import write_png
from dtj.report.samples import Sample, log_samples, metrics_samples
from dtj.report.svg import svg
from dtj.report.timeline import timeline
from dtj_contract import names
from dtj_core.api import DistributedTrainingJob
from dtj_core.plan.model import Object
from dtj_core.plan.times import unix

STATUS = "status.json"
MAX_METRICS_BYTES = 256 * 1024 * 1024
FORMATS = (".html", ".svg", ".png")


def command(flags: argparse.Namespace) -> int:
    """Writes the report of a local run or of a job on a cluster. Raises DtjError."""
    if flags.output and Path(flags.output).suffix not in FORMATS:
        raise InputError(f"-o {flags.output}: end the name in {', '.join(FORMATS)}")
    local = _status_file(flags.job)
    job = _read_job(local) if local else None
    if job is not None:
        given = _metrics(Path(flags.metrics)) if flags.metrics else _local_samples(job)
    else:
        job, given = _from_cluster(flags)
    facts = evidence(job, processes(job), given)
    path = Path(flags.output or f"{Path(facts.name).name}-report.html")
    try:
        write(path, facts)
    except OSError as error:
        raise LocalRunError(f"can't write {path}: {error.strerror}") from error
    print(path)
    return 0


def write(path: Path, facts: Evidence) -> None:
    """Writes the report in the format of the file's name."""
    line = timeline(facts)
    if path.suffix == ".png":
        write_png(path, facts, line)
    elif path.suffix == ".svg":
        path.write_text(svg(facts, line) + "\n", encoding="utf-8")
    else:
        path.write_text(page(facts, line), encoding="utf-8")


def processes(job: Object) -> int:
    """Returns the ranks of a pod. A spec that this version can't read has the number that it states, or 1."""
    try:
        return DistributedTrainingJob.model_validate({key: job[key] for key in job if key != "status"}).spec.processes
    except ValueError:
        stated = job.get("spec", {}).get("processesPerPod")
        return stated if isinstance(stated, int) else 1


def _status_file(target: str) -> Path | None:
    """Returns the status file of a local run: the run's folder, or the file itself. None: a job's name."""
    path = Path(target)
    if path.is_dir():
        if not (path / STATUS).is_file():
            raise InputError(f"{target}: holds no {STATUS}; name the folder of a run, as in .dtj/runs/NAME-TIME")
        return path / STATUS
    return path if path.is_file() else None


def _read_job(path: Path) -> Object:
    try:
        job = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: no JSON: {error}") from error
    if not isinstance(job, dict) or not isinstance(job.get("metadata"), dict):
        raise InputError(f"{path}: holds no {names.KIND}; `dtj get NAME -o json` and `dtj run` write one")
    return job


def _local_samples(job: Object) -> list[Sample]:
    """Returns the steps in the metrics file beside the newest checkpoint, where there is one."""
    checkpoint = job.get("status", {}).get("checkpoint") or {}
    path = Path(str(checkpoint.get("path") or "")).parent / names.METRICS_FILE
    return _metrics(path) if checkpoint.get("path") and path.is_file() else []


def _metrics(path: Path) -> list[Sample]:
    """Returns the steps of a metrics file; of a very long one, those of its end."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MAX_METRICS_BYTES))
            return metrics_samples(file.read().decode(errors="replace"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error


def _from_cluster(flags: argparse.Namespace) -> tuple[Object, list[Sample]]:
    """Returns a job of a cluster and its steps: of the metrics file, else of the lines that rank 0 printed."""
    from dtj.cluster.verbs import connect

    cluster = connect(flags)
    job = cluster.get(flags.job)
    if flags.metrics:
        return job, _metrics(Path(flags.metrics))
    from dtj.cluster.logs import read_lines

    try:
        lines = [
            (moment, text)
            for written, _, text in heapq.merge(*read_lines(cluster, job))
            if text.startswith("[rank 0] ") and (moment := _unix_nano(written)) is not None
        ]
    except ClusterError:
        return job, []  # the status alone makes a report
    return job, log_samples(lines, _attempts(job))


def _attempts(job: Object) -> Iterator[tuple[float, int]]:
    """Yields when each attempt that the status has a record of began to stop its predecessor."""
    for recovery in job.get("status", {}).get("recoveries") or []:
        if (began := unix(recovery.get("time"))) is not None and isinstance(recovery.get("attempt"), int):
            yield began, recovery["attempt"]


def _unix_nano(text: str) -> float | None:
    """Returns the Unix seconds of a container log's time, which has nanoseconds."""
    try:
        return datetime.fromisoformat(text[:26].rstrip("Z") + "+00:00").timestamp()
    except ValueError:
        return None
