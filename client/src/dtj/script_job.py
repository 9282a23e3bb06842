"""Builds the job of `dtj run [flags] -- train.py --its-args`: torchrun's habit without a job file. Pure.

The job is an ordinary one: `--dry-run` prints it, to start a job file from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dtj.errors import InputError
from dtj_contract import names
from dtj_core.api import launcher
from dtj_core.plan.model import Object

CLAIM = "shared"
"""Claim of the checkpoints, as in the job files of examples/."""
IMAGES = {"gloo": "dtj-trainer:cpu", "nccl": "dtj-trainer:cuda"}
MAX_NAME = 52
MAX_PROCESSES, MAX_REPLICAS = 64, 1024
FIELDS = {
    "nproc": "spec.processesPerPod",
    "nnodes": "spec.replicas",
    "backend": "spec.backend",
    "name": "metadata.name",
}
"""By the flag that only a script without a job file has, the field of a job file in its place."""
LAUNCHERS = frozenset({"torchrun", "accelerate", "composer", "deepspeed", "mpirun", "horovodrun"})
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_GPU = re.compile(r"nvidia\d+")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Processors and GPUs of this machine, for ranks."""

    gpus: int
    cpus: int

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> Machine:
        """Counts processors, and NVIDIA GPUs as CUDA_VISIBLE_DEVICES limits them."""
        gpus = sum(1 for path in devices.glob("nvidia*") if _GPU.fullmatch(path.name))
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        if visible is not None:
            listed = [device.strip() for device in visible.split(",")]
            # CUDA ignores everything from the first invalid entry on, so that -1 or nothing hides all GPUs.
            hidden = next((at for at, device in enumerate(listed) if device in ("", "-1")), len(listed))
            gpus = min(gpus, hidden)
        return cls(gpus=gpus, cpus=os.cpu_count() or 1)


@dataclass(frozen=True, kw_only=True)
class ScriptRun:
    """The flags of `dtj run -- COMMAND`, as written; None where a flag is absent."""

    command: Sequence[str]
    nproc: str | None = None
    nnodes: str | None = None
    backend: str | None = None
    name: str | None = None


def reject_script_flags(given: Mapping[str, str | None]) -> None:
    """Raises InputError for a flag that a job file replaces by a field."""
    for flag, value in given.items():
        if value is not None:
            raise InputError(f"--{flag} {value}: only for `dtj run -- train.py`; in a job file write {FIELDS[flag]}")


def job(run: ScriptRun, machine: Machine, *, here: bool) -> Object:
    """Returns the job that runs the command. Raises InputError, which names the flag and what to write.

    Args:
        run: The flags.
        machine: This machine, by which `--nproc gpu` and absent flags are decided.
        here: Whether the job will run on this machine, and must fit it.
    """
    run = _without_launcher(run)
    entrypoint = _entrypoint(run.command)
    backend = _backend(run, machine, here=here)
    replicas = _number("--nnodes", run.nnodes or "1", MAX_REPLICAS)
    processes = _processes(run.nproc, backend, machine)
    if here and backend == "nccl":
        _check_gpus(replicas, processes, machine)
    spec: Object = {
        "replicas": replicas,
        "processesPerPod": processes,
        "image": IMAGES[backend],
        "backend": backend,
        "entrypoint": entrypoint,
        "checkpoint": {"volume": {"claimName": CLAIM}},
    }
    if backend == "nccl":
        gpus = {"limits": {"nvidia.com/gpu": str(processes)}}
        spec["template"] = {"spec": {"containers": [{"name": "trainer", "resources": gpus}]}}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": _name(run.name, entrypoint)},
        "spec": spec,
    }


def _without_launcher(run: ScriptRun) -> ScriptRun:
    """Returns the run of the script itself, with the launcher's numbers where no flag of `dtj run` has them."""
    replicas = int(run.nnodes) if run.nnodes is not None and run.nnodes.isdecimal() else None
    if not run.command or not launcher.find(run.command)[0]:
        return run
    command = [Path(run.command[0]).name, *run.command[1:]]  # whose Python it is makes no difference to dtj run
    nodes = launcher.unwrap(command, 1)
    count = replicas or (nodes.nodes[1] if nodes is not None and nodes.nodes else 1)
    found = launcher.unwrap(command, count)
    if found is None or found.env or found.command[0] == "sh":
        raise InputError(
            f"{launcher.find(run.command)[0]}: dtj starts the ranks itself, and can't take this launcher out; write the"
            " script: dtj run --nproc N -- train.py"
        )
    processes = run.nproc or (str(found.processes) if found.processes else None)
    return replace(run, command=found.command, nproc=processes, nnodes=run.nnodes or str(count))


def _entrypoint(command: Sequence[str]) -> Object:
    """Returns spec.entrypoint of a command line such as `python train.py --lr 0.1` or `-m package.module`."""
    rest = list(command)
    if not rest:
        raise InputError("--: nothing follows; write the script, such as dtj run -- train.py --lr 0.1")
    program = Path(rest[0]).name
    if program in LAUNCHERS:
        raise InputError(f"{program}: dtj starts the ranks itself; write the script: dtj run --nproc N -- train.py")
    if _PYTHON.fullmatch(program):
        rest.pop(0)
        while rest[:1] == ["-u"]:  # output is passed on at once in any case
            rest.pop(0)
    if rest[:1] == ["-m"]:
        if len(rest) < 2:
            raise InputError("-m: no module follows; write -m package.module")
        return _with_arguments("module", rest[1], rest[2:])
    if not rest or rest[0].startswith("-"):
        option = rest[0] if rest else program
        raise InputError(f"{option}: write python train.py, or python -m package.module; python's options are not used")
    if not rest[0].endswith(".py") and not _PYTHON.fullmatch(program):
        raise InputError(
            f"{rest[0]}: not a Python script; write train.py or -m package.module (a job file can run any command: "
            "spec.template.spec.containers[0].command)"
        )
    return _with_arguments("script", rest[0], rest[1:])


def _with_arguments(kind: str, value: str, arguments: list[str]) -> Object:
    return {kind: value, "args": arguments} if arguments else {kind: value}


def _backend(run: ScriptRun, machine: Machine, *, here: bool) -> str:
    chosen = run.backend or ("nccl" if machine.gpus else "gloo")
    if chosen not in IMAGES:
        raise InputError(f"--backend {chosen}: write gloo or nccl")
    if here and chosen == "nccl" and not machine.gpus:
        raise InputError("--backend nccl: this machine has no NVIDIA GPU; write --backend gloo, or add --dry-run")
    return chosen


def _processes(nproc: str | None, backend: str, machine: Machine) -> int:
    """Returns the ranks of a pod, as torchrun reads --nproc-per-node; default: the GPUs, without nccl 1."""
    if nproc is None:
        return machine.gpus or 1 if backend == "nccl" else 1
    if nproc == "gpu" and not machine.gpus:
        raise InputError("--nproc gpu: this machine has no NVIDIA GPU; write a number, cpu or auto")
    counts = {"gpu": machine.gpus, "cpu": machine.cpus, "auto": machine.gpus or machine.cpus}
    if nproc in counts:
        if counts[nproc] > MAX_PROCESSES:
            raise InputError(f"--nproc {nproc}: {counts[nproc]} here; write a number of 1 to {MAX_PROCESSES}")
        return counts[nproc]
    return _number("--nproc", nproc, MAX_PROCESSES, others=", or gpu, cpu, auto")


def _number(flag: str, text: str, largest: int, others: str = "") -> int:
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= largest:
        raise InputError(f"{flag} {text}: write a whole number of 1 to {largest}{others}")
    return int(text)


def _check_gpus(replicas: int, processes: int, machine: Machine) -> None:
    if replicas > 1:
        raise InputError(
            f"--nnodes {replicas}: with nccl the pods would share the GPUs of this machine; write --nnodes 1 or "
            "--backend gloo, or add --dry-run"
        )
    if processes > machine.gpus:
        raise InputError(
            f"--nproc {processes}: nccl takes a GPU for each rank, and this machine has {machine.gpus}; write "
            f"--nproc {machine.gpus} or --backend gloo, or add --dry-run"
        )


def _name(given: str | None, entrypoint: Object) -> str:
    """Returns the name of the job: the flag's, else that of the script or module as Kubernetes accepts it."""
    if given is not None:
        if not _NAME.fullmatch(given) or len(given) > MAX_NAME:
            raise InputError(
                f"--name {given}: write a-z, 0-9 and '-', with a letter first and no '-' last, at most {MAX_NAME} "
                "characters"
            )
        return given
    source = Path(entrypoint["script"]).stem if "script" in entrypoint else entrypoint["module"].rpartition(".")[2]
    allowed = re.sub(r"[^a-z0-9]+", "-", source.lower()).lstrip("-0123456789")
    return allowed[:MAX_NAME].rstrip("-") or "train"
