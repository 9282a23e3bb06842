"""Takes a launcher (torchrun, accelerate launch, deepspeed, composer, horovodrun) out of the command of a job. Pure.

The agents do a launcher's work, so the ranks run the script itself: forked from the warm process, and
restarted in place. A launcher that can't be taken out stays, and the agent starts one for each pod.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from dtj_core.api import launcher_flags
from dtj_core.api.launcher_flags import Flag, How

PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
NODES = ("nnodes", "num_machines", "num_nodes")
PROCESSES = ("nproc_per_node", "num_gpus", "nproc", "slots_per_host")
FILLS = ("auto", "gpu")
"""Values of --nproc-per-node for as many ranks as a job has by default: one for each GPU."""
MAX_PROCESSES = 64
_PASSES_RANK = 's=$0; exec %s "$s" %s="$LOCAL_RANK" "$@"'


@dataclass(frozen=True, kw_only=True)
class Unwrapped:
    """Command of a rank, and what the launcher's flags ask for."""

    command: list[str]
    launcher: str
    """The launcher as the job names it."""
    processes: int | None = None
    """Ranks in each pod; None: the launcher leaves them open."""
    nodes: tuple[int, int] | None = None
    """Least and greatest number of pods."""
    engine: str = ""
    """Value of spec.engine that the launcher stands for; "": none."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables that the launcher would set for the ranks."""
    unused: tuple[str, ...] = ()
    """Flags that have no effect, as written."""


def find(command: Sequence[str]) -> tuple[str, list[str]]:
    """Returns the launcher that a command starts, and its arguments; "" if the command starts none."""
    program = posixpath.basename(command[0])
    if _is_python(program):
        options = [argument for argument in command[1:3] if argument == "-u"]
        rest = list(command[1 + len(options) :])
        if rest[:1] == ["-m"] and len(rest) > 1 and rest[1] in launcher_flags.MODULES:
            return launcher_flags.MODULES[rest[1]], rest[2:]
        return "", []
    if program == "accelerate" and list(command[1:2]) == ["launch"]:
        return "accelerate launch", list(command[2:])
    if program == "accelerate-launch":
        return "accelerate launch", list(command[1:])
    return (program, list(command[1:])) if program in launcher_flags.TABLES else ("", [])


def has_own_interpreter(command: Sequence[str]) -> bool:
    """Returns whether a launcher is named by its path: its first line then names the Python that has torch.

    horovodrun starts a whole command, which names its own.
    """
    return "/" in command[0] and not _is_python(command[0]) and posixpath.basename(command[0]) != "horovodrun"


def unwrap(command: Sequence[str], replicas: int | None) -> Unwrapped | None:
    """Returns the command of a rank; None if the command starts no launcher, or one that has to stay.

    `replicas`: the number of pods, if that can't change.

    A launcher stays where only it acts on a flag, where a flag is unknown, where the number of its ranks,
    or its interpreter, is known in the pod alone, and where it fills the script's arguments in.
    """
    launcher, arguments = find(command) if command else ("", [])
    if not launcher or has_own_interpreter(command):
        return None
    own, script = launcher_flags.split(launcher, arguments)
    if not script or any(flag is None or flag.keep or flag.how is How.REFUSED for _, _, flag in own):
        return None
    if launcher == "composer" and any("$" in argument or argument.startswith("~") for argument in script[1:]):
        return None
    values = {flag.name: value for _, value, flag in own if flag is not None}
    written = " ".join(command[: len(command) - len(arguments)])
    processes = _processes(values, replicas)
    if processes == 0:
        return None
    return Unwrapped(
        command=_command(launcher, written, values, script, command[0] if _is_python(command[0]) else "python3"),
        launcher=written,
        engine=launcher_flags.ENGINES.get(launcher, ""),
        processes=processes,
        nodes=_nodes(values),
        env={flag.env: value or "true" for _, value, flag in own if flag is not None and flag.env},
        unused=tuple(option for option, _, flag in own if flag is not None and _has_no_effect(flag)),
    )


def _command(launcher: str, written: str, values: dict[str, str], script: list[str], interpreter: str) -> list[str]:
    if values.keys() & launcher_flags.AS_COMMAND or launcher == "horovodrun":
        return script
    python = [interpreter, "-u", *(["-m"] if values.keys() & launcher_flags.AS_MODULE else [])]
    old = "torch.distributed.launch" in written.split()
    if (launcher == "deepspeed" or old) and not values.keys() & {"no_local_rank", "use_env"}:
        # These two pass the rank to the script as an argument, which some scripts require.
        text = _PASSES_RANK % (shlex.join(python), "--local-rank" if old else "--local_rank")
        return ["sh", "-c", text, *script]
    return [*python, *script]


def _processes(values: dict[str, str], replicas: int | None) -> int | None:
    """Returns the ranks of a pod; None if the flags leave them open, 0 if they can't be known here."""
    total = next((values[name] for name in launcher_flags.TOTALS if name in values), None)
    if total is not None and "nproc" not in values:
        count = int(total) if _is_number(total) else 0
        divides = replicas is not None and count % replicas == 0 and count <= MAX_PROCESSES * replicas
        return count // replicas if replicas is not None and divides else 0
    for name in PROCESSES:
        value = values.get(name)
        if value is not None and value not in FILLS:
            return int(value) if _is_number(value) and int(value) <= MAX_PROCESSES else 0
    return None


def _nodes(values: dict[str, str]) -> tuple[int, int] | None:
    for name in NODES:
        match = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", values.get(name, ""))
        if match:
            return int(match[1]), int(match[2] or match[1])
    total, each = values.get("world_size", ""), values.get("nproc", "")
    if _is_number(total) and _is_number(each) and int(each) and int(total) % int(each) == 0:
        return (int(total) // int(each),) * 2
    return None


def _has_no_effect(flag: Flag) -> bool:
    return flag.how is How.NOT_CARRIED or flag.name == launcher_flags.RESTARTS.name


def _is_python(program: str) -> bool:
    return PYTHON.fullmatch(posixpath.basename(program)) is not None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 6
