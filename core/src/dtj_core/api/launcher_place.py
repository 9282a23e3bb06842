"""The place of a launcher among the pods, where it stays in the command and its pod starts one. Pure.

torchrun reads its place from PET_*. accelerate launch, composer and deepspeed take it as flags alone: without them,
each pod would train by itself, and the job be Complete.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from dtj_core.api import launcher_flags
from dtj_core.api.launcher import NODES, find

ACCELERATE = (
    "--num_machines $WORLD_SIZE --machine_rank $RANK --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT"
    # For DeepSpeed: its default starts the ranks of the other machines by pdsh.
    " --deepspeed_multinode_launcher standard"
)
_ALL_RANKS = " --num_processes $((WORLD_SIZE * PET_NPROC_PER_NODE))"
# The number of pods, and of the ranks in each, is in a file alone. Without ssh, the names in it mean nothing.
_HOSTFILE = (
    "f=$(mktemp); n=0; while [ $n -lt $WORLD_SIZE ]; do echo pod-$n slots=$PET_NPROC_PER_NODE; n=$((n + 1));"
    ' done > "$f"; '
)
_DEEPSPEED = "--no_ssh --hostfile {} --node_rank $RANK --master_addr $MASTER_ADDR --master_port $MASTER_PORT"
# WORLD_SIZE and LOCAL_WORLD_SIZE, which composer reads as numbers of ranks, count one rank for each launcher.
_COMPOSER = (
    "-n $PET_NPROC_PER_NODE --world_size $((WORLD_SIZE * PET_NPROC_PER_NODE)) --node_rank $RANK"
    " --master_addr $MASTER_ADDR --master_port $MASTER_PORT"
)
_PLACES = {
    "accelerate launch": ("", ACCELERATE),
    "composer": ("", _COMPOSER),
    "deepspeed": (_HOSTFILE, _DEEPSPEED.format('"$f"')),
}
"""Shell text in front of the launcher, and its flags."""
OWN_FLAGS = {"accelerate launch": ACCELERATE, "composer": _COMPOSER, "deepspeed": _DEEPSPEED.format("FILE")}
"""Flags for a launcher in a shell text, where nobody else adds them."""
_REPLACED = frozenset({*NODES, "nproc", "world_size"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash"})
_STARTS = r"(?:^|[;&|(]|\b(?:exec|then|do|time|nohup)\b)\s*(?:\w+=\S*\s+)*(?:\S*/)?"
_MODULE = r"python[\d.]*\s+(?:-u\s+)?-m\s+"
_IN_SHELL = {
    launcher: re.compile(rf"{_STARTS}(?:{program}|{_MODULE}{module})\s(?!.*(?:{flags}))", re.MULTILINE)
    for launcher, program, module, flags in (
        ("accelerate launch", r"accelerate(?:\s+|-)launch", r"accelerate\.commands\.launch", "--machine_rank"),
        ("composer", "composer", r"composer\.cli(?:\.launcher)?", "--world_size"),
        ("deepspeed", "deepspeed", r"deepspeed\.launcher\.runner", r"--no_ssh|--hostfile|-H\b"),
    )
}
"""By launcher: one that starts, without any flag of its place in the rest of its line."""


def placed(command: Sequence[str], replicas: int | None) -> list[str]:
    """Returns the command of a launcher that stays, with its place among the pods instead of the job's own.

    `replicas`: the number of pods, if that can't change. One that is alone needs no place (composer needs one, to
    know its ranks), and a command that starts no such launcher is returned as it is.
    """
    launcher, arguments = find(command) if command else ("", [])
    if launcher not in _PLACES or (replicas == 1 and launcher != "composer"):
        return list(command)
    own, script = launcher_flags.split(launcher, arguments)
    before, flags = _PLACES[launcher]
    given = {flag.name: value for _, value, flag in own if flag is not None}
    if launcher == "accelerate launch" and not given.keys() & {"num_processes", "config_file"}:
        flags += _ALL_RANKS
    if "nproc" in given:
        before = f"PET_NPROC_PER_NODE={shlex.quote(given['nproc'])}; "
    stay = [
        part
        for option, value, flag in own
        if flag is None or (flag.name not in _REPLACED and flag.text is not launcher_flags.RENDEZVOUS)
        for part in ([option, value] if value else [option])
    ]
    started = shlex.join(command[: len(command) - len(arguments)])
    return ["sh", "-c", f'{before}exec {started} {flags} "$@"', "sh", *stay, *script]


def find_alone(command: Sequence[str]) -> str:
    """Returns the launcher that a shell text starts without a place among the pods; "" if there is none."""
    if not command or command[0].rpartition("/")[2] not in _SHELLS:
        return ""
    text = "\n".join(command[1:]).replace("\\\n", " ")
    return next((launcher for launcher, pattern in _IN_SHELL.items() if pattern.search(text)), "")
