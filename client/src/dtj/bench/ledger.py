"""The trials of a bench in results.jsonl: a line for the setup, and one for each trial as soon as it has ended.

A bench that is killed loses the trial that ran, and continues with it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from dtj.bench.plan import Trial
from dtj.errors import InputError, LocalRunError

VERSION = 1
FILE = "results.jsonl"
OK, FAILED, TIMEOUT = "ok", "failed", "timeout"
Record = dict[str, Any]
"""A trial with its outcome, and its figures if that is OK."""
_FLAGS = {"model": "--model", "steps": "--steps", "warmup": "--warmup", "threads": "--threads"}


class Ledger:
    """The file, which one bench at a time has open."""

    def __init__(self, folder: Path, setup: Mapping[str, Any], *, fresh: bool = False) -> None:
        """Opens the file, or creates it.

        Raises InputError if its trials were made with another setup, LocalRunError if another bench has it open or the
        folder can't be written.

        Args:
            folder: Holds the file.
            setup: What all trials of a file have in common, by name.
            fresh: Drop the trials that the file has.
        """
        self.path = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise LocalRunError(f"-o {folder}: {error.strerror}; name a folder that can be written") from error
        try:
            self._lock()
            if fresh:
                os.ftruncate(self._fd, 0)
            lines = self._lines()
            self.records: list[Record] = [line for line in lines if line.get("kind") == "trial"]
            header = next((line for line in lines if line.get("kind") == "setup"), None)
            if header is None:
                self._append({"kind": "setup", "version": VERSION, "setup": dict(setup)})
            else:
                self._check(header, setup)
        except BaseException:
            os.close(self._fd)
            raise
        self._done = {_key(record) for record in self.records}

    def has(self, trial: Trial) -> bool:
        """Returns whether a trial has ended, with whatever outcome."""
        return _key(_named(trial)) in self._done

    def add(self, trial: Trial, outcome: str, **figures: Any) -> Record:
        """Keeps a trial that has ended. Returns its record."""
        record = {"kind": "trial", **_named(trial), "outcome": outcome, **figures}
        self._append(record)
        self.records.append(record)
        self._done.add(_key(record))
        return record

    def drop_failures(self) -> None:
        """Forgets the trials that failed or timed out, so that they run again."""
        kept = [line for line in self._lines() if line.get("outcome") not in (FAILED, TIMEOUT)]
        part = self.path.with_name(FILE + ".part")
        part.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        os.close(self._fd)
        part.replace(self.path)
        self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND)
        self._lock()
        self.records = [line for line in kept if line.get("kind") == "trial"]
        self._done = {_key(record) for record in self.records}

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LocalRunError(
                f"{self.path}: another dtj bench writes it; wait for its end, or name another folder with -o"
            ) from error

    def _lines(self) -> list[dict[str, Any]]:
        """Returns the whole lines, and cuts off one that a killed bench has left unfinished."""
        text = self.path.read_bytes()
        whole = text.rfind(b"\n") + 1
        if whole != len(text):
            os.ftruncate(self._fd, whole)
        try:
            return [dict(json.loads(line)) for line in text[:whole].splitlines()]
        except (ValueError, TypeError) as error:
            raise InputError(
                f"{self.path}: not the results of a bench; name another folder with -o, or write --fresh"
            ) from error

    def _append(self, line: Mapping[str, Any]) -> None:
        body = (json.dumps(line) + "\n").encode()
        try:
            whole = os.write(self._fd, body) == len(body)
        except OSError as error:
            raise LocalRunError(f"{self.path}: {error.strerror}; free some room, and start the bench again") from error
        if not whole:
            raise LocalRunError(f"{self.path}: no room for a whole line; free some, and start the bench again")

    def _check(self, header: Mapping[str, Any], setup: Mapping[str, Any]) -> None:
        if header.get("version") != VERSION:
            raise InputError(f"{self.path}: of another version of dtj; write --fresh, or name another folder with -o")
        before: Mapping[str, Any] = header.get("setup", {})
        for name in setup:
            if before.get(name) != setup[name]:
                same = f"write {_FLAGS[name]} {before.get(name)}, " if name in _FLAGS else ""
                raise InputError(
                    f"{self.path}: its trials have {name} {before.get(name)}, and now it is {setup[name]}; {same}"
                    "--fresh to drop them, or name another folder with -o"
                )


def _named(trial: Trial) -> dict[str, Any]:
    return {**asdict(trial.cell), "repeat": trial.repeat}


def _key(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(record.get(name) for name in ("scaling", "link", "batch", "world", "arm", "repeat"))
