"""`dtj export`: finds the checkpoints of a run, and starts the training library's exporter, which has torch."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

from dtj.errors import InputError, LocalRunError
from dtj_contract import names

MODULE = ("-m", "dtj_trainer.export")
STATUS = "status.json"
OPTIONS = ("format", "model", "dtype", "part")
_REJECTED = re.compile(r"^(?:ConfigError|CheckpointInvalid): (.*)", re.MULTILINE | re.DOTALL)
_ABSENT = re.compile(r"^.*(?:ModuleNotFoundError|No module named)\b.*$", re.MULTILINE)


def command(flags: argparse.Namespace) -> int:
    """Exports, and prints what the file has. Raises DtjError."""
    given = [f"--{name}={value}" for name in OPTIONS if (value := getattr(flags, name)) is not None]
    try:
        done = subprocess.run(
            [flags.python, *MODULE, str(checkpoints(Path(flags.source))), "--out", flags.out, *given],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise LocalRunError(f"--python {flags.python}: {error.strerror}; name another interpreter") from error
    if done.returncode == 0:
        sys.stderr.write(done.stderr)
        print(done.stdout, end="")
        return 0
    if done.returncode == names.EXIT_NO_RESTART and (rejected := _REJECTED.search(done.stderr)):
        sys.stderr.write(done.stderr[: rejected.start()])
        raise InputError(rejected[1].strip())
    if absent := _ABSENT.search(done.stderr):
        raise LocalRunError(
            f"--python {flags.python}: {absent[0]}: install dtj-trainer[torch] there, or name another interpreter by "
            "--python"
        )
    sys.stderr.write(done.stderr)
    raise LocalRunError(f"the export failed with exit code {done.returncode}; its output is above")


def checkpoints(source: Path) -> Path:
    """Returns the folder of checkpoints that a local run's folder names, and any other folder as it is."""
    status = source / STATUS
    if not status.is_file():
        return source
    try:
        job = json.loads(status.read_text(encoding="utf-8"))
        saved = (job["status"].get("checkpoint") or {}).get("path")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"{status}: it can't be read as the status of a run: {error}") from error
    if not saved:
        raise InputError(f"{source}: this run has reported no checkpoint; name the folder of its checkpoints")
    return Path(saved).parent
