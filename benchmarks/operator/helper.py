"""A process beside the operator that takes part in a trial, and whose CPU is measured apart."""

from __future__ import annotations

import select
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

READY = "ready"
"""The line that the process prints once it serves."""
READY_SECONDS = 120.0


class Helper:
    """Runs `python -m MODULE ARGUMENTS` in a block, which begins when the process is ready and kills it at its end.

    Raises AssertionError if the process ends before that, or is not ready in READY_SECONDS.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = [sys.executable, "-m", module, *arguments]

    def __enter__(self) -> Self:
        root = Path(__file__).resolve().parents[2]
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root)
        assert self._process.stdout is not None
        if select.select([self._process.stdout], [], [], READY_SECONDS)[0]:
            assert self._process.stdout.readline().decode() == READY + "\n"
            return self
        self._process.kill()
        raise AssertionError(f"not ready in {READY_SECONDS:g} s: {' '.join(self._command)}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(30)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, line: bytes) -> None:
        """Writes a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()
