"""Decides what the ranks run, how many there are in a pod, and how many pods. Pure."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dtj.convert import shell
from dtj.convert.fields import Draft
from dtj.convert.kept import AGENT_SETS
from dtj.convert.launch import SHELLS, Launch, unwrap
from dtj.convert.pods import gpus, literal_env
from dtj.errors import InputError
from dtj_core.api.launcher import PYTHON
from dtj_core.api.launcher_flags import How
from dtj_core.plan.model import Object

MAX_ARGUMENTS = 512
MAX_SCRIPT_CHARS = 1024
_REFERENCE = re.compile(r"\$\(([A-Za-z_]\w*)\)")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, kw_only=True)
class Size:
    """Numbers of pods and ranks that the job file names outside the command."""

    replicas: int | None = None
    replicas_at: str = ""
    """Place of `replicas` in the file."""
    processes: int | None = None
    """Ranks in each pod."""
    launcher_fills_gpus: bool = False
    """Whether a launcher without --nproc-per-node starts a rank for each GPU; else it starts one."""
    values: shell.Values | None = None
    """Variables of a script, beside those of the container; None for a command that no shell reads."""


def ranks_of_node(value: Any, place: str, draft: Draft) -> int | None:
    """Returns Kubeflow's number of ranks in each pod; None where it is that of the GPUs.

    Raises InputError for a value that Kubeflow does not take.
    """
    if str(value).isdecimal():
        return int(str(value))
    if value == "cpu":
        draft.note(How.NOT_CARRIED, place, "nothing counts processors here: set spec.processesPerPod", value)
    elif value not in (None, "auto", "gpu"):
        raise InputError(f"{place}: write auto, gpu or a whole number, not {value!r}")
    return None


def settle(command: Sequence[str], container: Object, draft: Draft, where: str, size: Size) -> None:
    """Puts what runs, and how often, into the job. `where` is the place of the command in the file.

    Raises InputError if two places of the file contradict each other.
    """
    held = gpus(container)
    automatic = held if size.launcher_fills_gpus else 0
    values = {**literal_env(container), **(size.values or {})}
    of_script = size.values is not None
    launch = unwrap(command, draft, where, values, size.processes or automatic or None, of_script=of_script)
    replicas = _replicas(launch, draft, where, size)
    processes = _processes(launch, draft, where, size, container, replicas)
    if processes != (held or 1):
        draft.put("spec.processesPerPod", processes)
    if launch.max_restarts is not None:
        draft.limit_restarts(launch.max_restarts)
    env = container.setdefault("env", []) or []
    container["env"] = env + [
        {"name": name, "value": shell.plain(value)}
        for name, value in launch.env.items()
        if name not in {e.get("name") for e in env}
    ]
    if of_script:
        launch.command = _without_shell(launch.command, literal_env(container), draft, where)
    _place(launch, container, draft, where)


def _without_shell(command: Sequence[str], env: shell.Values, draft: Draft, where: str) -> list[str]:
    """Returns a script's command with the variables that are left as the kubelet reads them."""
    in_shell = posixpath.basename(command[0]) in SHELLS
    given = {*env, *AGENT_SETS, *(shell.sets(" ".join(command)) if in_shell else shell.SHELL_HAS)}
    parts = map(shell.marked, command) if in_shell else command
    left = dict.fromkeys(name for part in parts for name in shell.unknown(part) if name not in given)
    if outputs := [one for part in command for one in shell.OUTPUT.findall(part)]:
        left.pop("$(…)", None)
        here = any(re.search(r"\b(?:scontrol|srun|squeue|sinfo|sacct)\b", one) for one in outputs)
        text = "and there is no Slurm: write what it prints" if here else "by a shell of each rank"
        for one in dict.fromkeys(outputs):
            draft.note(How.NOT_CARRIED if here else How.OTHER, where, f"runs in the pod, {text}", one)
    if left:
        names = ", ".join(f"${name}" if name in "@*" or name.isdecimal() else name for name in left)
        draft.note(
            How.NOT_CARRIED,
            where,
            f"no value is known here for {names}: write it in the container's env or the command",
        )
    if in_shell:
        return list(command)
    if of_shell := [name for name in shell.SHELL_HAS if name in shell.unknown(" ".join(command)) and name not in env]:
        text = "is read by a shell of each rank, and has the pod's value, not that of your machine"
        how = How.NOT_CARRIED if "HOME" in of_shell else How.OTHER
        draft.note(how, where, text, " ".join(f"${name}" for name in sorted(of_shell)))
    if outputs or of_shell:
        return ["sh", "-c", f"exec {' '.join(map(shell.quoted, command))}"]
    return [shell.for_kubelet(part) for part in command]


def _replicas(launch: Launch, draft: Draft, where: str, size: Size) -> int:
    """Returns the number of pods, and writes it."""
    if "nodes" in launch.open and size.replicas is None:
        raise InputError(f"{where}: {launch.open['nodes']}: the value can't be known here: write the number of pods")
    low, high = launch.nodes or (size.replicas or 1,) * 2
    replicas = high if size.replicas is None else size.replicas
    if not low <= replicas <= high:
        raise InputError(
            f"{where}: --nnodes {low if low == high else f'{low}:{high}'} contradicts {size.replicas_at}, which"
            f" asks for {replicas} pods: write the same number in both places"
        )
    if size.replicas is None and launch.nodes is None and launch.counted_in:
        draft.note(
            How.NOT_CARRIED,
            f"{where}: {launch.counted_in}",
            "the number of pods is in this file, which is not read: set spec.replicas",
        )
    draft.put("spec.replicas", replicas)
    if low < high and "elastic" not in draft.job["spec"]:
        draft.put("spec.elastic", {"minReplicas": low, "maxReplicas": high})
    return replicas


def _processes(launch: Launch, draft: Draft, where: str, size: Size, container: Object, replicas: int) -> int:
    """Returns the number of ranks in each pod."""
    held = gpus(container)
    if launch.kept:
        if held > 1:
            draft.note(How.OTHER, where, "spec.processesPerPod is 1, because the launcher of each pod starts the ranks")
        return 1
    if launch.total:
        if launch.total % replicas:
            flag = {"composer": "--world_size", "horovodrun": "--num-proc"}.get(launch.launcher, "--num_processes")
            raise InputError(
                f"{where}: {flag} {launch.total} can't be divided by {replicas} pods: write a multiple of it"
            )
        return launch.total // replicas
    if launch.launcher:
        named = launch.open.get("processes") or launch.open.get("gpus")
        if named and not held and not size.processes:
            raise InputError(
                f"{where}: {named}: the value can't be known here: write a number, or the GPUs of each pod (--gpus N"
                " for a script, nvidia.com/gpu in the resources of a container)"
            )
        fills = size.launcher_fills_gpus or launch.fills_gpus or bool(named) or launch.launcher != "torchrun"
        automatic = held if fills else 0
        if (
            fills
            and launch.launcher == "torchrun"
            and not (launch.processes or size.processes or _has_device(container))
        ):
            text = "spec.processesPerPod is 1; torchrun starts a rank for each processor of a node without GPUs"
            draft.note(How.OTHER, where, f"{text}: set the number that it had")
        return launch.processes or size.processes or automatic or 1
    if size.processes is None and held > 1:
        draft.note(
            How.OTHER,
            where,
            f"spec.processesPerPod is 1, because the command started one process for {held} GPUs; remove it if each GPU"
            " shall have a rank of its own",
        )
    return size.processes or 1


def _has_device(container: Object) -> bool:
    """Returns whether a container requests a GPU or another device."""
    resources = container.get("resources") or {}
    return any("/" in name for kind in ("limits", "requests") for name in resources.get(kind) or {})


def _place(launch: Launch, container: Object, draft: Draft, where: str) -> None:
    """Writes spec.entrypoint, or the command of the container where it is no plain Python command."""
    command = launch.command
    if launch.directory:
        if posixpath.isabs(launch.directory) or posixpath.isabs(container.get("workingDir") or ""):
            container["workingDir"] = posixpath.join(container.get("workingDir") or "/", launch.directory)
        else:
            command = ["sh", "-c", f"cd {shlex.quote(launch.directory)} && exec {shlex.join(command)}"]
    if not launch.kept and any(name in AGENT_SETS for part in command for name in _REFERENCE.findall(part)):
        command = ["sh", "-c", f"exec {' '.join(map(_for_shell, command))}"]
        draft.note(
            How.OTHER, where, "$(RANK) and the like are read by a shell, because the agent sets them, not the kubelet"
        )
    container.pop("command", None)
    container.pop("args", None)
    entrypoint = _entrypoint(command)
    if entrypoint is None:
        container["command"] = command
        return
    if command[0] == "python":
        draft.note(How.OTHER, where, "spec.entrypoint, which runs python3 -u", "python")
    draft.put("spec.entrypoint", entrypoint)


def _entrypoint(command: Sequence[str]) -> Object | None:
    """Returns the entrypoint of `python3 [-u] SCRIPT …` or `python3 [-u] -m MODULE …`; None for any other command."""
    if command[0] not in ("python", "python3") or not PYTHON.fullmatch(command[0]):
        return None
    rest = list(command[1:])
    while rest[:1] == ["-u"]:
        rest = rest[1:]
    is_module = rest[:1] == ["-m"]
    rest = rest[is_module:]
    if not rest or rest[0].startswith("-") or len(rest) > MAX_ARGUMENTS or len(rest[0]) > MAX_SCRIPT_CHARS:
        return None
    if is_module and not _MODULE.fullmatch(rest[0]):
        return None
    target: Object = {"module" if is_module else "script": rest[0]}
    return {**target, "args": rest[1:]} if rest[1:] else target


def _for_shell(argument: str) -> str:
    """Returns an argument for a shell that reads the agent's variables; all others are left to the kubelet."""
    parts: list[str] = []
    end = 0
    for match in _REFERENCE.finditer(argument):
        if match[1] in AGENT_SETS:
            parts += [
                shlex.quote(argument[end : match.start()]) if argument[end : match.start()] else "",
                f'"${match[1]}"',
            ]
            end = match.end()
    rest = argument[end:]
    return "".join(parts) + (shlex.quote(rest) if rest or not parts else "")
