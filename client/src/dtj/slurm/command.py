"""The verb `dtj submit --slurm`: prints a script to standard output, and notes to standard error."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dtj import jobfile, runtimefile
from dtj.errors import InputError
from dtj.local import template
from dtj.slurm import fields
from dtj.slurm.script import script

VOLUMES = ".dtj/volumes"  # as dtj run has it


def command(flags: argparse.Namespace) -> int:
    """Prints the script of the job of `flags.file`. Raises InputError."""
    origin = flags.filename
    job = runtimefile.load_one(origin, flags.runtime)
    model = jobfile.check(job, origin)
    template.check_spec(job["spec"], origin)
    if question := model.spec.accelerator_question:
        raise InputError(f"{origin}: {question}")
    found = fields.notes(job, model, origin)
    text = script(
        job, model, python=flags.python or sys.executable, volumes=Path(flags.volumes_dir or VOLUMES).absolute()
    )
    for note in found.notes:
        print(f"{origin}: {note}", file=sys.stderr)
    sys.stdout.write(text)
    return 0
