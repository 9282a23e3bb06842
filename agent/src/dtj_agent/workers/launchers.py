"""Detects worker commands that start a launcher such as torchrun, which serves MASTER_PORT itself.

Users bring such commands from systems whose pods have MASTER_PORT and no store on it. The
rendezvous store of the agent would take that port from them: torch 2.13 then becomes its client,
older versions fail with EADDRINUSE.
"""

from __future__ import annotations

import os
import re
from typing import List, Sequence

from dtj_agent.settings import AgentSettings

MAX_SCRIPT_BYTES = 64 * 1024
_MODULES = re.compile(
    r"^(?:torch\.distributed\.(?:run|launch)|accelerate\.commands\..*|deepspeed\.launcher\..*|composer\.cli.*)$"
)
_IN_SHELL = re.compile(
    r"(?:^|[\s/;&|('\"`])(?:torchrun|horovodrun|accelerate(?:\s+|-)launch)(?=[\s'\"`]|$)"
    r"|(?:torch\.distributed\.(?:run|launch)|accelerate\.commands\.launch|deepspeed\.launcher\.runner)\b",
    re.MULTILINE,
)
# Packages, folders and strategies have these names, too, so they count only where a shell command has its program.
_AMBIGUOUS = frozenset({"deepspeed", "composer", "colossalai"})
_BETWEEN_COMMANDS = re.compile(r"[;&|()`\n]")
_STARTS_ANOTHER = frozenset((
    "!", "bash", "do", "dumb-init", "else", "env", "eval", "exec", "if", "nice", "nohup", "numactl", "setsid", "sh",
    "srun", "stdbuf", "sudo", "then", "time", "timeout", "tini", "while", "{",
))  # fmt: skip
# An option, a variable, or a number as in `timeout 10m`.
_NO_PROGRAM = re.compile(r"-|\w+=|\d")
_PYTHON = re.compile(r"^(?:python|pypy)[\d.]*$")


def is_launcher(command: Sequence[str]) -> bool:
    """Returns whether this command, or a shell script that it names, starts the ranks with a launcher."""
    if _PYTHON.match(os.path.basename(command[0])):
        return "-m" in command and any(_MODULES.match(module) for module in command[command.index("-m") + 1 :][:1])
    # A program, a shell, or a prefix such as `numactl` or the entrypoint of an image.
    if any(os.path.basename(argument) in _AMBIGUOUS for argument in command[1:2]):
        return True
    texts = (" ".join(command), *(_script(argument) for argument in command))
    return any(_IN_SHELL.search(text) or _starts_ambiguous(text) for text in texts)


def _starts_ambiguous(text: str) -> bool:
    """Returns whether a command of a shell text starts deepspeed, composer or colossalai."""
    return any(_is_ambiguous(part.split()) for part in _BETWEEN_COMMANDS.split(text.replace("\\\n", " ")))


def _is_ambiguous(tokens: List[str]) -> bool:
    tokens = [token.strip("'\"") for token in tokens]
    while tokens and (os.path.basename(tokens[0]) in _STARTS_ANOTHER or _NO_PROGRAM.match(tokens[0])):
        tokens = tokens[1:]
    return bool(tokens) and os.path.basename(tokens[0]) in _AMBIGUOUS


def fit(settings: AgentSettings) -> AgentSettings:
    """Returns the settings of a pod: if its command is a launcher, one starts all ranks of the pod."""
    if not is_launcher(settings.command):
        return settings
    return settings._replace(processes=1, launched=settings.processes)


def _script(path: str) -> str:
    """Returns the text of a small file that is not Python; "" for anything else."""
    if path.endswith((".py", ".pyz")) or not os.path.isfile(path):
        return ""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_SCRIPT_BYTES + 1)
    except OSError:
        return ""
    return "" if len(data) > MAX_SCRIPT_BYTES or b"\0" in data else _uncommented(data.decode("utf-8", "replace"))


def _uncommented(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
