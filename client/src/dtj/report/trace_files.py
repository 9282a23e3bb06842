"""Finds and reads the traces that `telemetry.profile` has written."""

from __future__ import annotations

import json
from pathlib import Path

from dtj.errors import InputError
from dtj.report.traces import NAME, TraceOverlap, trace_overlap

MAX_BYTES = 256 * 1024 * 1024
"""A larger trace is not read: as Python's objects it would take gigabytes."""
MAX_FILES = 32


def read_traces(folder: Path) -> list[TraceOverlap]:
    """Returns what the traces of a folder show, by rank. Raises InputError if it has none that can be read."""
    if not folder.is_dir():
        raise InputError(f"--traces {folder}: no folder")
    found = _read(_files(folder))
    if not found:
        raise InputError(
            f"--traces {folder}: holds no trace-rank*.json of `telemetry.profile` of at most {MAX_BYTES >> 20} MiB"
        )
    return found


def traces_near(folder: Path, since: float) -> list[TraceOverlap]:
    """Returns the traces in a job's folder on its volume, or in a folder within: the newest window of each rank.

    Files from before `since`, in Unix seconds, belong to an earlier run.
    """
    try:
        folders = [folder, *(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("step-"))]
    except OSError:
        return []
    return _read([file for each in folders for file in _files(each) if _modified(file) >= since])


def _files(folder: Path) -> list[Path]:
    try:
        return [file for file in folder.iterdir() if NAME.fullmatch(file.name)]
    except OSError:
        return []


def _modified(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _read(files: list[Path]) -> list[TraceOverlap]:
    """Returns the trace with the latest steps of each rank. Skips files that are torn, or too large."""
    newest: dict[int, TraceOverlap] = {}
    for file in sorted(files)[:MAX_FILES]:
        try:
            if file.stat().st_size > MAX_BYTES:
                continue
            found = trace_overlap(json.loads(file.read_bytes()), file.name)
        except (OSError, ValueError, RecursionError):
            continue
        if found is not None and (found.rank not in newest or newest[found.rank].last < found.last):
            newest[found.rank] = found
    return [newest[rank] for rank in sorted(newest)]
