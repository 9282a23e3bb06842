"""The verb `dtj convert`: reads files, prints YAML to standard output and notes to standard error."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dtj import yaml_text
from dtj.convert.documents import Options, convert, runtimes
from dtj.convert.fields import Draft, Note
from dtj.errors import InputError
from dtj_core.api.launcher_flags import How

STANDARD_INPUT = "-"
T = TypeVar("T")
LOUD = (How.NOT_CARRIED, How.UNKNOWN)


def command(flags: argparse.Namespace) -> int:
    """Converts one file or command line. Returns 0, or 1 with --strict if something was not carried over."""
    line = bool(flags.words)
    if line and os.path.isfile(flags.file):
        raise InputError(
            f"{flags.file} and {flags.words[0]}: give one FILE; the runtime of a TrainJob is --runtime {flags.words[0]}"
        )
    path = shlex.join([flags.file, *flags.words]) if line else flags.file
    where = "the command line" if line else path
    options = Options(
        name=flags.name,
        image=flags.image,
        command=flags.run,
        gpus=flags.gpus,
        runtimes=tuple(one for each in flags.runtime for one in _with_place(each, lambda t: runtimes(t))),
    )
    file_name = "job" if line or path == STANDARD_INPUT else os.path.basename(path)
    drafts = _with_place(where, lambda text: convert(text, file_name, options), path if line else None)
    text = render(drafts, where, comments=flags.comments)
    if flags.out:
        try:
            Path(flags.out).write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"--out {flags.out}: {error.strerror}") from error
    else:
        sys.stdout.write(text)
    for draft in drafts:
        for note in draft.notes:
            print(f"{where}: {_owner(draft, drafts)}{note}", file=sys.stderr)
    return 1 if flags.strict and any(note.how in LOUD for draft in drafts for note in draft.notes) else 0


def render(drafts: list[Draft], where: str, *, comments: bool = False) -> str:
    """Returns the jobs as YAML documents, with the notes of each above it if `comments`."""
    parts = []
    for draft in drafts:
        notes = [f"# Converted by dtj convert from {where}.", *map(_comment, draft.notes)] if comments else []
        body = yaml_text.dump(draft.job)
        parts.append("\n".join([*notes, body]))
    return "---\n".join(parts)


def _comment(note: Note) -> str:
    return "# " + " ".join(str(note).split())


def _owner(draft: Draft, drafts: list[Draft]) -> str:
    return f"{draft.job['metadata']['name']}: " if len(drafts) > 1 else ""


def _with_place(path: str, act: Callable[[str], T], text: str | None = None) -> T:
    """Returns what `act` makes of the file's text, with the file's name in front of an error."""
    try:
        return act(_read(path) if text is None else text)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _read(path: str) -> str:
    try:
        text = sys.stdin.read() if path == STANDARD_INPUT else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{error.strerror}: give the file of a job, or - for standard input") from error
    except UnicodeDecodeError as error:
        raise InputError("not text in UTF-8: give the file of a job") from error
    return text.removeprefix("\ufeff")  # the byte order mark of editors on Windows
