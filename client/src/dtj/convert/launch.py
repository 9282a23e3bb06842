"""Takes the launcher out of a command: torchrun, accelerate launch, deepspeed, composer or horovodrun. Pure.

The agent does a launcher's work, so the ranks run the script itself. A launcher that can't be taken out
stays: the agent then starts one launcher for each pod, and leaves MASTER_PORT to it.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from dtj.convert import kept, shell
from dtj.convert.fields import REDIRECTED, Draft
from dtj.errors import InputError
from dtj_agent.workers.launchers import is_launcher
from dtj_core.api import launcher_flags as flags
from dtj_core.api.launcher import NODES, PROCESSES, PYTHON, find
from dtj_core.api.launcher_flags import MAX_RESTARTS, How
from dtj_core.api.launcher_place import ACCELERATE

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash"})
OTHER_LAUNCHERS = {
    "mpirun": "MPI starts the ranks by ssh",
    "mpiexec": "MPI starts the ranks by ssh",
    "ray": "Ray has a scheduler of its own",
    "tune": "torchtune starts torchrun itself, on a recipe that `tune cp RECIPE FILE` gives you as a script",
    "colossalai": "ColossalAI starts the ranks by ssh",
    **dict.fromkeys(
        ("docker", "podman", "apptainer", "singularity", "enroot", "kubectl"),
        "the pod is the container itself, of the image that the job names",
    ),
}
_OF_SYSTEM = ("/bin", "/usr/bin", "/usr/local/bin")
"""Folders of programs whose Python is in PATH, and perhaps in another folder."""


@dataclass
class Launch:
    """Command of every rank, and the numbers that the launcher's flags ask for."""

    command: list[str]
    launcher: str = ""
    nodes: tuple[int, int] | None = None
    """Least and greatest number of pods."""
    processes: int | None = None
    """Ranks in each pod; None: not in the command."""
    total: int | None = None
    """Ranks of all pods."""
    max_restarts: int | None = None
    limits: dict[str, int] = field(default_factory=dict)
    """Limits of an elastic DeepSpeed job, by `min` and `max`."""
    env: dict[str, str] = field(default_factory=dict)
    directory: str = ""
    """Directory that the shell changed to before."""
    fills_gpus: bool = False
    """Whether the launcher starts a rank for each GPU."""
    counted_in: str = ""
    """Flag for a file that holds the number of pods, for a command that does not name it."""
    open: dict[str, str] = field(default_factory=dict)
    """Flags for numbers whose value can't be known here, by `nodes` and `processes`."""
    kept: bool = False
    """Whether the launcher itself runs, once in each pod."""


def unwrap(
    command: Sequence[str],
    draft: Draft,
    where: str,
    values: shell.Values,
    processes: int | None = None,
    *,
    of_script: bool = False,
) -> Launch:
    """Returns the command of a rank. `where` is the command's place in the file, for notes.

    `processes` is the number of ranks in each pod for a launcher that stays and names none.
    `of_script`: the caller takes care of variables that are left in the command.

    Raises InputError for launchers that no agent replaces.
    """
    command = _without_prefix(command)
    if not command:
        raise InputError(f"{where}: no command follows")
    program = os.path.basename(command[0])
    if reason := OTHER_LAUNCHERS.get(program):
        raise InputError(
            f"{where}: {program} can't be converted, because {reason}: "
            "write the command of one rank, such as python3 train.py"
        )
    if program in SHELLS:
        command = [shell.plain(one) for one in command]
        return _in_shell(command, draft, where, values, processes, of_script)
    launcher, arguments = find(command)
    if launcher:
        return _unwrapped(launcher, arguments, draft, where, values, _program(command, arguments), of_script)
    if is_detected(command):  # behind a prefix such as numactl
        return _behind_prefix(command, draft, where, processes, of_script)
    return _shell_file(command, draft, where) if program.endswith(".sh") else Launch(command)


def _without_prefix(command: Sequence[str]) -> list[str]:
    """Returns the command behind `exec` and the like."""
    found = list(command)
    while found and os.path.basename(found[0]) in ("exec", "time", "nohup"):
        found = found[1:]
    return found


def is_detected(command: Sequence[str]) -> bool:
    """Returns whether the agent will take the command for a launcher, without a look at files of this machine."""
    if PYTHON.fullmatch(os.path.basename(command[0])):
        return is_launcher(command)
    return is_launcher([f"{' '.join(command)} "])


def _program(command: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Returns the launcher as the file has it."""
    return list(command[: len(command) - len(arguments)])


def _interpreter(program: Sequence[str], draft: Draft, where: str) -> str:
    """Returns the Python that has the launcher, and so torch. Notes one that the file does not name."""
    folder, name = posixpath.split(program[0])
    if PYTHON.fullmatch(name):
        return "python3" if program[0] == "python" else program[0]
    if not folder or folder in _OF_SYSTEM or folder.endswith("/.local/bin"):
        return "python3"
    python = posixpath.join(folder, "python3")
    draft.note(How.OTHER, f"{where}: {program[0]}", "its Python is assumed to be the one beside it", python)
    return python


def _unwrapped(
    launcher: str,
    arguments: Sequence[str],
    draft: Draft,
    where: str,
    values: shell.Values,
    program: Sequence[str],
    of_script: bool,
) -> Launch:
    """Returns the command of a rank, without its launcher. `program` is the launcher as the file has it."""
    written = " ".join(program)
    own, script = flags.split(launcher, arguments)
    if not script:
        raise InputError(f"{where}: {launcher} starts no script: write it behind the flags, as in {launcher} train.py")
    own = [(option, shell.expand_text(value, values), flag) for option, value, flag in own]
    launch = Launch([], launcher)
    keep = any(flag and flag.keep for _, _, flag in own)
    for option, value, flag in own:
        if flag is None:
            if not keep:
                text = f"no flag of {launcher} that is known here; left out"
                draft.note(How.UNKNOWN, f"{where}: {option}", text, value)
            continue
        if flag.how is How.REFUSED:
            raise InputError(f"{where}: {launcher} {option}: {flag.text}")
        draft.note(flag.how, f"{where}: {option}", flag.text, value)
        if flag.env and shell.unknown(value):
            text = f"no value is known here for {flag.env}: write it in the container's env"
            draft.note(How.NOT_CARRIED, f"{where}: {option}", text, value)
        elif flag.env:
            launch.env[flag.env] = value or "true"
        if flag.counts:
            launch.counted_in = f"{option} {value}"
        _number(flag, option, value, launch, draft, where)
    if limits := launch.limits:
        launch.nodes = (limits.get("min", 1), limits.get("max", limits.get("min", 1)))
    if launcher == "composer" and launch.total and launch.processes:
        if launch.total % launch.processes:
            text = f"--world_size {launch.total} can't be divided by --nproc {launch.processes}: write a multiple of it"
            raise InputError(f"{where}: {text}")
        launch.nodes = (launch.total // launch.processes,) * 2
    names = {flag.name for _, _, flag in own if flag}
    passes_rank = launcher == "deepspeed" or "torch.distributed.launch" in program
    if passes_rank and not names & {"no_local_rank", "use_env"}:
        draft.note(
            How.NOT_CARRIED,
            f"{where}: --local_rank",
            f"{written} passed it to the script: read LOCAL_RANK from the environment instead",
        )
    if keep:
        return _kept_accelerate(program, own, script, launch, draft, where, of_script)
    if engine := flags.ENGINES.get(launcher):
        draft.put("spec.engine", engine)
    if names & flags.AS_COMMAND or launcher == "horovodrun":
        launch.command = script
    else:
        python = _interpreter(program, draft, where)
        launch.command = [python, "-u", *(["-m"] if names & flags.AS_MODULE else []), *script]
    draft.note(
        How.NOT_NEEDED,
        f"{where}: {launcher}",
        "the agent starts the ranks itself",
        "" if written == launcher else written,
    )
    return launch


_PLACES = ("node_rank", "master_addr", "rdzv_endpoint", "standalone", "machine_rank", "main_process_ip")
_PROCESSES = (*PROCESSES, *flags.TOTALS)
_LIMITS = {
    "max_restarts": MAX_RESTARTS,
    "min_elastic_nodes": "spec.elastic.minReplicas",
    "max_elastic_nodes": "spec.elastic.maxReplicas",
}


def _number(flag: flags.Flag, option: str, value: str, launch: Launch, draft: Draft, where: str) -> None:
    """Sets the number that a flag holds. Raises InputError for a number that no launcher takes."""
    name = flag.name
    if name in NODES and (match := re.fullmatch(r"(\d+)(?::(\d+))?", value)):
        low, high = int(match[1]), int(match[2] or match[1])
        if not 1 <= low <= high:
            raise InputError(f"{where}: {option} {value}: write 1 or more pods, in MIN:MAX the smaller first")
        launch.nodes = (low, high)
    elif name == "nproc_per_node" and value in ("auto", "gpu", "cpu"):
        launch.fills_gpus = True
        if value == "cpu":
            text = "nothing counts processors here: set spec.processesPerPod"
            draft.note(How.NOT_CARRIED, f"{where}: {option}", text, value)
        if value == "gpu":
            launch.open["gpus"] = f"{option} {value}"
    elif name in (*NODES, *_PROCESSES) and not value.isdecimal():
        launch.open["nodes" if name in NODES else "processes"] = f"{option} {value}"
    elif name in _PROCESSES and not int(value):
        raise InputError(f"{where}: {option} {value}: write 1 or more ranks")
    elif name in flags.TOTALS:
        launch.total = int(value)
    elif name in _PROCESSES:
        launch.processes = int(value)
    elif name in _LIMITS and not value.isdecimal():
        draft.note(How.NOT_CARRIED, f"{where}: {option}", f"no whole number is known here: set {_LIMITS[name]}", value)
    elif name == "max_restarts":
        launch.max_restarts = int(value)
    elif name in _LIMITS:
        launch.limits[name[:3]] = int(value)


def _kept_accelerate(
    program: Sequence[str],
    own: Sequence[tuple[str, str, flags.Flag | None]],
    script: Sequence[str],
    launch: Launch,
    draft: Draft,
    where: str,
    of_script: bool,
) -> Launch:
    """Returns accelerate launch with the rendezvous of the pods, which overrides that of a configuration file."""
    dropped = {flag.name for flag in flags.ACCELERATE if flag.text is flags.RENDEZVOUS} | {
        "num_machines",
        "num_processes",
    }
    stay = [
        part
        for option, value, flag in own
        if flag is None or flag.name not in dropped
        for part in ([option, value] if value else [option])
    ]
    ranks = f" --num_processes {launch.total}" if launch.total else ""
    text = f"exec {kept.joined(program, of_script)} {ACCELERATE}{ranks} {kept.joined([*stay, *script], of_script)}"
    launch.command, launch.kept = ["sh", "-c", text], True
    draft.note(How.OTHER, f"{where}: accelerate launch", "stays, with the rendezvous of the pods: one for each pod")
    return launch


def _behind_prefix(command: Sequence[str], draft: Draft, where: str, processes: int | None, of_script: bool) -> Launch:
    """Returns the launch of `numactl torchrun …`, whose torchrun gets its place from variables instead of flags."""
    launch = Launch([], kept=True)
    place = next((at for at in range(1, len(command)) if find(command[at:])[0] == "torchrun"), 0)
    _, arguments = find(command[place:]) if place else ("", [])
    own, script = flags.split("torchrun", arguments) if arguments else ([], [])
    if script:
        command = command[: len(command) - len(arguments)]
        for option, value, flag in own:
            if flag and (flag.text is flags.RENDEZVOUS or flag is flags.NODES):
                draft.note(flag.how, f"{where}: {option}", flag.text, value)
                _number(flag, option, value, launch, draft, where)
            else:
                command = [*command, option, value] if value else [*command, option]
        command = [*command, *script]
    text = f"{kept.exports(processes)}; exec {kept.joined(command, of_script)}"
    launch.command = _kept(["sh", "-c", text], draft, where, "a launcher that another program starts").command
    return launch


def _in_shell(
    command: Sequence[str], draft: Draft, where: str, values: shell.Values, processes: int | None, of_script: bool
) -> Launch:
    """Returns the launch of `sh -c TEXT`. Text that does more than to start a launcher stays as it is."""
    place = next((at for at, token in enumerate(command[1:], 1) if re.fullmatch(r"-[a-z]*c", token)), 0)
    if not place or place + 1 >= len(command):
        return _shell_file(command, draft, where)
    text = command[place + 1]
    try:
        steps = shell.commands(text)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error
    for step in steps:
        program = os.path.basename(step.tokens[0].text)
        if reason := OTHER_LAUNCHERS.get(program):
            raise InputError(f"{where}: {program} can't be converted, because {reason}: write the command of one rank")
    if not steps:
        return Launch(list(command))
    *before, last = steps
    simple = all(shell.is_export(step) or step.tokens[0].text in ("set", "echo") or _directory(step) for step in before)
    if simple and not last.depth and not any(step.piped for step in steps):
        known, directory, env = dict(values), "", {}
        for step in before:
            for name, token in shell.assignments(step):
                known[name] = env[name] = shell.expand_text(token.text, known)
            if changed_to := _directory(step):
                directory = posixpath.join(directory, shell.plain(shell.expand_text(changed_to, known)))
        arguments = shell.expand(last.tokens, known, mark=of_script)
        while arguments and (match := shell.ASSIGNMENT.fullmatch(arguments[0])):
            env[match[1]] = match[2]
            arguments = arguments[1:]
        arguments = _without_prefix(arguments)
        launcher, rest = find(arguments) if arguments else ("", [])
        _, script = flags.split(launcher, rest) if launcher else ([], [])
        open_ends = [name for part in (*script, *env.values(), directory) for name in shell.unknown(part)]
        if launcher and (of_script or not open_ends):
            launch = _unwrapped(launcher, rest, draft, where, known, _program(arguments, rest), of_script)
            if launch.kept:
                return launch
            launch.env = {**{name: value for name, value in env.items() if not shell.unknown(value)}, **launch.env}
            launch.directory = directory
            if last.redirected:
                draft.note(How.NOT_CARRIED, where, REDIRECTED, last.redirected)
            draft.note(How.OTHER, where, "the shell around the launcher is gone; what it exported is in env")
            return launch
    if of_script and _is_unknown(shell.expand(last.tokens, values)):
        raise InputError(
            f"{where}: {last.text}: the command can't be known here: give it with --command 'torchrun train.py'"
        )
    if not is_detected(["sh", text]):
        return Launch(list(command))
    stays = _kept(
        [*command[:place], "-c", f"{kept.exports(processes)}\n{kept.kubelet_to_shell(text)}", *command[place + 2 :]],
        draft,
        where,
        "shell text",
    )
    for step in steps:
        launcher, rest = find(shell.expand(step.tokens, values))
        for option, value, flag in flags.split(launcher, rest)[0] if launcher else ():
            if flag is flags.NODES:
                _number(flag, option, value, stays, draft, where)
            elif flag and flag.name in _PLACES and not _is_of_agent(value):
                text = "stays in the text, but the pods have other places: remove it, or write that of the note above"
                draft.note(How.NOT_CARRIED, f"{where}: {option}", text, value)
    return stays


def _is_of_agent(value: str) -> bool:
    """Returns whether a value has variables in it that give a launcher its place."""
    left = shell.unknown(value)
    return bool(left) and all(name in kept.AGENT_SETS or name.startswith("PET_") for name in left)


def _is_unknown(command: Sequence[str]) -> bool:
    """Returns whether the program that a command starts is in variables without a value alone."""
    rest = list(command)
    while rest and re.fullmatch(r"\$\{?\w+(?:\[[@*]\])?\}?", rest[0]):
        rest = rest[1:]
    return len(rest) < len(command) and (not rest or rest[0].startswith("-"))


def _directory(step: shell.Command) -> str:
    """Returns the directory of a plain `cd DIRECTORY`; "" for any other command."""
    texts = [token.text for token in step.tokens]
    return texts[1] if texts[0] == "cd" and len(texts) == 2 and not texts[1].startswith(("-", "~")) else ""


def _shell_file(command: Sequence[str], draft: Draft, where: str) -> Launch:
    draft.note(
        How.OTHER,
        where,
        "runs as it is, once for each rank; if the shell script starts torchrun, set spec.processesPerPod to 1"
        " and pass --nnodes $WORLD_SIZE --node_rank $RANK --master_addr $MASTER_ADDR --master_port $MASTER_PORT",
    )
    return Launch(list(command))


def _kept(command: list[str], draft: Draft, where: str, why: str) -> Launch:
    """Returns a launcher that stays in its command and reads the rendezvous from the environment."""
    draft.note(
        How.OTHER,
        where,
        f"{why} stays: the agent starts one launcher for each pod, and PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and"
        " PET_MASTER_PORT give torchrun its place; flags in it that name nodes or an endpoint still decide",
    )
    for pattern, (launcher, own) in kept.PLACED_BY_FLAGS.items():
        if any(re.search(rf"(?:^|[\s;&|(/.]){pattern}", part) for part in command):
            text = f"{launcher} goes by flags of its own: in a job of several pods, pass {own}"
            draft.note(How.NOT_CARRIED, where, text)
    return Launch(command, kept=True)
