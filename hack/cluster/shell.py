"""Runs other programs. Every call has a deadline, and every error names the command and its output."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class ProvisionError(Exception):
    """A missing or failed component; the message names it and the remedy."""


def log(message: str) -> None:
    """Prints progress to stderr, because callers evaluate stdout (`cluster-env`, `bin`)."""
    print(f"[cluster] {message}", file=sys.stderr, flush=True)


def run(
    argv: Sequence[str | Path],
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end and captures both streams. `env` is added to the process's own environment."""
    command = [str(part) for part in argv]
    try:
        done = subprocess.run(
            command,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            cwd=cwd,
            env={**os.environ, **env} if env else None,
            check=False,
        )
    except FileNotFoundError as error:
        raise ProvisionError(f"{command[0]}: not found ({error})") from error
    except subprocess.TimeoutExpired as error:
        raise ProvisionError(f"timed out after {timeout:g} s: {' '.join(command)}") from error
    if check and done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
        raise ProvisionError(f"exit code {done.returncode}: {' '.join(command)}\n{tail}")
    return done


def output(argv: Sequence[str | Path], *, timeout: float, env: Mapping[str, str] | None = None) -> str:
    return run(argv, timeout=timeout, env=env).stdout.strip()


def succeeds(argv: Sequence[str | Path], *, timeout: float, env: Mapping[str, str] | None = None) -> bool:
    """Returns whether a program exits with 0 in time; False if it is missing or times out."""
    try:
        return run(argv, timeout=timeout, env=env, check=False).returncode == 0
    except ProvisionError:
        return False


def wait_for(what: str, probe: Callable[[], bool], *, timeout: float, every: float = 0.2) -> None:
    """Polls `probe` until it is true. Raises ProvisionError at the deadline: no wait here is endless."""
    deadline = time.monotonic() + timeout
    while not probe():
        if time.monotonic() > deadline:
            raise ProvisionError(f"timed out after {timeout:g} s waiting for {what}")
        time.sleep(every)
