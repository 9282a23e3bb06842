"""`dtj report`: finds a job's status and logged steps, and writes the report."""

from __future__ import annotations

import argparse
import heapq
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from dtj.errors import ClusterError, InputError, LocalRunError
from dtj.report.content import Content, Run, content, run
from dtj.report.evidence import evidence
from dtj.report.page import page
from dtj.report.png import write_png
from dtj.report.samples import Sample, log_samples, metrics_samples
from dtj.report.svg_file import svg_file
from dtj.report.trace_files import read_traces, traces_near
from dtj.report.verdict import Bound
from dtj_contract import names
from dtj_core.api import DistributedTrainingJob
from dtj_core.plan.model import Object
from dtj_core.plan.times import unix

STATUS = "status.json"
MAX_METRICS_BYTES = 256 * 1024 * 1024
FORMATS = (".html", ".svg", ".png")


def command(flags: argparse.Namespace) -> int:
    """Writes the report of a local run or of a job on a cluster, and prints the verdict. Raises DtjError."""
    if flags.output and Path(flags.output).suffix not in FORMATS:
        raise InputError(f"-o {flags.output}: end the name in {', '.join(FORMATS)}")
    if flags.compare is None and (flags.compare_metrics or flags.compare_traces):
        raise InputError("--compare-metrics and --compare-traces: name the other run by --compare")
    shown = _run(flags, flags.job, flags.metrics, flags.traces)
    other = _run(flags, flags.compare, flags.compare_metrics, flags.compare_traces) if flags.compare else None
    made = content(shown, other)
    path = Path(flags.output or f"{Path(shown.facts.name).name}-report.html")
    try:
        write(path, made.timeline_alone() if flags.timeline else made)
    except OSError as error:
        raise LocalRunError(f"can't write {path}: {error.strerror}") from error
    print(path)
    if not flags.timeline:
        print("\n".join(printed(made)))
    return 0


def write(path: Path, made: Content) -> None:
    """Writes the report in the format of the file's name."""
    if path.suffix == ".png":
        write_png(path, made)
    elif path.suffix == ".svg":
        path.write_text(svg_file(made) + "\n", encoding="utf-8")
    else:
        path.write_text(page(made), encoding="utf-8")


def printed(made: Content) -> Iterator[str]:
    """Yields the verdict as lines of a terminal, and the table of two runs."""
    found = made.run.verdict
    yield f"{found.bound}: {found.shown_by}"
    yield from (f"  {'try' if found.bound != Bound.UNKNOWN else 'see'} {advice}" for advice in found.advice)
    if made.other is not None:
        other = made.other.verdict
        yield f"compared with {made.other.facts.name}, {other.bound}: {other.shown_by}"
    for table in (section.table for section in made.sections if section.table):
        widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
        for name, *cells in table:
            shown = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
            yield f"{name.ljust(widths[0])}  {shown}".rstrip()


def _run(flags: argparse.Namespace, target: str, metrics: str | None, traces: str | None) -> Run:
    """Returns a run: of a folder, or of a job on a cluster. `metrics` and `traces` name where its numbers are."""
    local = _status_file(target)
    job = _read_job(local) if local else None
    beside = Path(metrics) if metrics else None
    if job is not None:
        beside = beside or _metrics_beside(job)
        given = _metrics(beside) if beside else []
    else:
        job, given = _from_cluster(flags, target, beside)
    facts = evidence(job, processes(job), given)
    if traces:
        return run(facts, read_traces(Path(traces)))
    return run(facts, traces_near(beside.parent, facts.begin) if beside else [])


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


def _metrics_beside(job: Object) -> Path | None:
    """Returns the metrics file beside the newest checkpoint, where there is one."""
    checkpoint = job.get("status", {}).get("checkpoint") or {}
    path = Path(str(checkpoint.get("path") or "")).parent / names.METRICS_FILE
    return path if checkpoint.get("path") and path.is_file() else None


def _metrics(path: Path) -> list[Sample]:
    """Returns the steps of a metrics file; of a very long one, those of its end."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MAX_METRICS_BYTES))
            return metrics_samples(file.read().decode(errors="replace"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error


def _from_cluster(flags: argparse.Namespace, name: str, metrics: Path | None) -> tuple[Object, list[Sample]]:
    """Returns a job of a cluster and its steps: of the metrics file, else of the lines that rank 0 printed."""
    from dtj.cluster.verbs import connect

    cluster = connect(flags)
    job = cluster.get(name)
    if metrics:
        return job, _metrics(metrics)
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
