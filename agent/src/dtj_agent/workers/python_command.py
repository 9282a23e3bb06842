"""Decides whether a worker's command can be forked from a warm process: `python3 [options] SCRIPT` or `-m MODULE`."""

from __future__ import annotations

import os
import re
import sys
from typing import List, NamedTuple, Optional, Sequence, Union

MAX_SCRIPT_BYTES = 256 * 1024
_PYTHON = re.compile(r"^python[\d.]*$")
# Options without a value that mean the same for a process that serves many scripts.
_OPTIONS = re.compile(r"^-[uBbdEIOPqsS]+$")
_WITH_VALUE = ("-X", "-W")
_MODULE = re.compile(r"^[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*$")
_IMPORT = re.compile(r"^[ \t]*(?:import[ \t]+([^\n#]+)|from[ \t]+([\w.]+)[ \t]+import\b)", re.MULTILINE)
# With these a script may import what its text does not name.
_DYNAMIC = re.compile(r"__import__|importlib|runpy|\bexec\b|\beval\b")


class PythonCommand(NamedTuple):
    """A command that a warm process of the same interpreter and options can carry out."""

    interpreter: str
    options: List[str]
    target: str
    is_module: bool


class Unsuitable(NamedTuple):
    """Why a command is always started as a process of its own. An empty text is no news for a user."""

    why: str


def parse(command: Sequence[str]) -> Union[PythonCommand, Unsuitable]:
    """Returns the parts of a Python command, or why workers with this command can't be forked."""
    if not _PYTHON.match(os.path.basename(command[0])):
        return Unsuitable("the command is %s, not python3" % os.path.basename(command[0]))
    place = 1
    while place < len(command) and command[place].startswith("-") and command[place] != "-m":
        if command[place] in _WITH_VALUE:
            place += 1
        elif not _OPTIONS.match(command[place]):
            return Unsuitable("the command has the option %s" % command[place][:20])
        place += 1
    options = list(command[1:place])
    is_module = command[place : place + 1] == ["-m"] or command[place : place + 1] == ("-m",)
    if is_module:
        place += 1
    if place >= len(command):
        return Unsuitable("the command names no script")
    target = command[place]
    if is_module:
        suitable = _MODULE.match(target) is not None
        return PythonCommand(command[0], options, target, True) if suitable else Unsuitable("")
    if not os.path.isfile(target):
        return Unsuitable("")  # the interpreter reports what is wrong
    if target.endswith((".pyc", ".pyz", ".zip")):
        return Unsuitable("the command's script is an archive or bytecode")
    if _is_standard(target):
        return Unsuitable("")
    return PythonCommand(command[0], options, target, False)


def _is_standard(path: str) -> bool:
    """Returns whether a script imports nothing beyond the standard library, so that a warm process saves no time."""
    known: Optional[Sequence[str]] = getattr(sys, "stdlib_module_names", None)  # Python 3.10
    if known is None:
        return False
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_SCRIPT_BYTES + 1)
    except OSError:
        return False
    text = data.decode("utf-8", "replace")
    if len(data) > MAX_SCRIPT_BYTES or _DYNAMIC.search(text):
        return False
    for several, single in _IMPORT.findall(text):
        for name in (several or single).split(","):
            top = name.strip().split(" ")[0].partition(".")[0].strip("();\\")
            if top not in known:
                return False
    return True
