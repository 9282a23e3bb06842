"""Converts an sbatch script. Pure.

The script is not run. Its directives become the job, its one srun or launcher line becomes the command, its
exports become variables, and every other line is noted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection

from dtj.convert import amounts, apptainer, meta, pods, sbatch, script, shell
from dtj.convert.fields import Draft, Field, shown
from dtj.convert.launch import SHELLS, is_detected
from dtj.convert.program import Size, settle
from dtj.errors import InputError
from dtj_agent.workers.launchers import is_launcher
from dtj_core.api.launcher import PYTHON
from dtj_core.api.launcher_flags import How
from dtj_core.plan.model import Object

LINES = (
    Field("srun COMMAND", How.OTHER, "spec.entrypoint or the command of the container; a launcher in it is taken out"),
    Field("apptainer exec IMAGE COMMAND", How.OTHER, "the command; docker://IMAGE becomes spec.image, a file can't"),
    Field("shifter COMMAND", How.OTHER, "the command; --image becomes spec.image"),
    Field(
        "bash -c TEXT", How.OTHER, "the launcher in the text is taken out, if the text does no more than to start it"
    ),
    Field("export NAME=VALUE", How.OTHER, "env of the container"),
    Field("NAME=VALUE", How.OTHER, "filled in where it is used"),
    Field("`COMMAND` and $(COMMAND) in the training's line", How.OTHER, "runs in the pod, by a shell of each rank"),
    Field("$PWD", How.OTHER, "the pod's, read by a shell of each rank"),
    Field("$HOME", How.NOT_CARRIED, "the pod's, read by a shell of each rank"),
    Field('"$@", $1', How.NOT_CARRIED, "the arguments that you give the script are not in the file: write them in"),
    Field("variables that a condition or loop sets", How.NOT_CARRIED, "write what shall hold in the container's env"),
    Field("MASTER_ADDR, MASTER_PORT, RANK, …", How.NOT_NEEDED, "the agent sets what torchrun sets, for each rank"),
    Field("cd DIR", How.OTHER, "workingDir of the container"),
    Field("module load, conda activate, source", How.NOT_CARRIED, script.IMAGE),
    Field("pip install", How.NOT_CARRIED, script.IMAGE),
    Field("echo, set, date, nvidia-smi, …", How.NOT_NEEDED, "it changes nothing of the training"),
    Field(
        "other commands, if, for",
        How.NOT_CARRIED,
        script.OTHER,
    ),
)
_SLURM = re.compile(r"\$(?=\{SLURM_\w+\}|SLURM_)\{?(SLURM_\w+)\}?")
_ONE_LINER = re.compile(r"\bpython[\d.]*\s+(?:-u\s+)?-c\s")
"""Python that checks the nodes or cleans up, beside a line that trains."""
WRAPPERS = {"time": "", "nice": "-n", "stdbuf": "", "env": "-u", "exec": "", "nohup": ""}
"""Programs that start the training, each with its option whose value is in the next token."""


def is_script(text: str) -> bool:
    """Returns whether the text is an sbatch script."""
    return re.search(r"^#SBATCH\s", text, re.MULTILINE) is not None


def convert(
    text: str, image: str | None, name: str, command: list[str] | None = None, gpus: int | None = None
) -> Draft:
    """Returns the job of an sbatch script. `name` is its name if the script gives none.

    `gpus` is the number of each pod, for a script whose directives name none.

    `command` takes the place of the line that trains. Raises InputError for what can't be a job.
    """
    draft = Draft()
    allocation = sbatch.read(text, draft)
    if gpus is not None:
        if held := allocation.gpus_from:
            raise InputError(f"--gpus: {allocation.places[held]} {held} is in the script: change it there")
        allocation.options["--gpus-per-node"] = str(gpus)
    if (language := re.match(r"#!\S*(?:/|env\s+)(python[\d.]*|perl|ruby|Rscript|julia)\b", text)) and not command:
        raise InputError(
            f"the script is a program for {language[1]}: give its command with --command, such as"
            " --command 'python3 train.py'"
        )
    try:
        steps = shell.commands("" if language else text)
    except ValueError as error:
        raise InputError(str(error)) from error
    values = _slurm_values(allocation)
    env: dict[str, str] = {}
    launches: list[tuple[shell.Command, list[str]]] = []
    in_front: dict[shell.Command, dict[str, str]] = {}
    directory = allocation.options.get("--chdir", "")
    for step in steps:
        if shell.is_export(step):
            script.assign(step, values, env, draft)
            continue
        tokens, own = _without_wrappers(shell.unwrapped(shell.expand(step.tokens, values, mark=True)))
        if not tokens:
            continue
        if _trains(tokens):
            launches.append((step, tokens))
            in_front[step] = own
        elif tokens[0] == "cd" and len(tokens) > 1 and not step.depth and not shell.unknown(tokens[1]):
            directory = os.path.join(directory, tokens[1])
            draft.note(How.OTHER, f"line {step.line}", "workingDir of the container", step.text)
        else:
            how, why = script.fate(tokens)
            draft.note(how, f"line {step.line}", why, step.text)
    step, tokens = _only(launches, steps, command)
    for other, _ in launches:
        if other is not step:
            draft.note(How.NOT_CARRIED, f"line {other.line}", script.OTHER, other.text)
    where = f"line {step.line}"
    if command:
        draft.note(How.OTHER, where, "--command takes its place", step.text)
    draft.note(How.OTHER, where, "spec.entrypoint or the command of the container", step.text)
    if not command:
        script.note_redirections(step, where, draft)
    tokens, own = _without_wrappers(_without_srun(tokens, allocation, where, draft), {"env"})
    tokens, inside = _without_wrappers(apptainer.unwrap(tokens, allocation, where, draft), {"env"})
    env |= in_front.get(step, {}) | own | inside
    tokens = _with_variables_of_pods(tokens, values)
    template: Object = {"spec": {"containers": [_container(allocation, image, env, directory, where, draft)]}}
    container = template["spec"]["containers"][0]
    if allocation.gpus is None:
        draft.note(
            How.NOT_CARRIED, where, "no directive asks for GPUs: give --gpus N, the number of each pod; 0 for none"
        )
    _spec(allocation, name, draft)
    low, high = allocation.nodes or (None, None)
    size = Size(
        replicas=high,
        replicas_at=allocation.nodes_at,
        processes=None if is_detected(command or tokens) else allocation.tasks,
        values=values,
    )
    settle(command or tokens, container, draft, where, size)
    if high is None and draft.job["spec"]["replicas"] == 1:
        text = "spec.replicas is 1: no directive names the nodes; set it if you give sbatch --nodes"
        draft.note(How.OTHER, "--nodes", text)
    script.note_arguments(step, where, draft)
    if low and high and low < high:
        draft.put("spec.elastic", {"minReplicas": low, "maxReplicas": high})
    pods.finish(template, container, draft, where)
    return draft


def _slurm_values(allocation: sbatch.Allocation) -> dict[str, str]:
    """Returns the variables of Slurm that the directives decide."""
    nodes, tasks, gpus = (allocation.nodes or (1, 1))[1], allocation.tasks, allocation.gpus
    known = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS": (tasks or 1) * nodes,
        "SLURM_NPROCS": (tasks or 1) * nodes,
        "SLURM_NTASKS_PER_NODE": tasks,
        "SLURM_TASKS_PER_NODE": tasks,
        "SLURM_GPUS_ON_NODE": gpus,
        "SLURM_GPUS_PER_NODE": gpus,
        "SLURM_CPUS_PER_TASK": allocation.options.get("--cpus-per-task"),
        "SLURM_JOB_NAME": allocation.options.get("--job-name"),
        "SLURM_SUBMIT_DIR": allocation.options.get("--chdir"),
    }
    found = {name: str(value) for name, value in known.items() if value is not None}
    return {
        **found,
        "SLURM_PROCID": "$(RANK)",
        "SLURM_LOCALID": "$(LOCAL_RANK)",
        "SLURM_NODEID": "$(GROUP_RANK)",
        "@": "",
        "*": "",
    }


def _without_wrappers(
    tokens: list[str], wrappers: Collection[str] = WRAPPERS.keys()
) -> tuple[list[str], dict[str, str]]:
    """Returns the command behind `env`, `nice` and the like, and the variables `NAME=VALUE` in front of it."""
    own: dict[str, str] = {}
    valued: str | None = None  # no program yet, so no option of one
    while tokens:
        if match := shell.ASSIGNMENT.fullmatch(tokens[0]):
            own[match[1]] = shell.plain(match[2])
        elif len(tokens) > 1 and (program := os.path.basename(tokens[0])) in wrappers:
            valued = WRAPPERS[program]
        elif valued is None or not tokens[0].startswith("-"):
            break
        elif tokens[0] == valued:
            tokens = tokens[1:]
        tokens = tokens[1:]
    return tokens, own


def _with_variables_of_pods(tokens: list[str], values: shell.Values) -> list[str]:
    """Returns the command of a shell with Slurm's variables as the agent sets them; any other command as it is."""

    def replaced(match: re.Match[str]) -> str:
        value = values.get(match[1], match[0])
        return re.sub(r"^\$\((\w+)\)$", r"$\1", value)

    if os.path.basename(tokens[0]) not in SHELLS:
        return tokens
    return [_SLURM.sub(replaced, shell.plain(token)) for token in tokens]


def _trains(tokens: list[str]) -> bool:
    """Returns whether a command may be the training: srun of a program, a launcher, or Python."""
    tokens, _ = _without_wrappers(tokens, {"env"})
    if not tokens:
        return False
    if tokens[0] == "srun":
        rest, _ = _without_wrappers(sbatch.split(tokens[1:])[1], {"env"})
        return (
            bool(rest)
            and rest[0] not in script.IDLE | script.FILES
            and (_trains(rest) or rest[0] not in script.ENVIRONMENT)
        )
    if container := apptainer.inside(tokens):
        return bool(container.command) and _trains(container.command)
    program = os.path.basename(tokens[0])
    if program in script.MANAGERS and "run" in tokens:
        rest = tokens[tokens.index("run") + 1 :]
        starts_python = any(PYTHON.fullmatch(os.path.basename(one)) or one.endswith(".py") for one in rest)
        return starts_python or is_launcher([" ".join(rest) + " "])
    if program in SHELLS:
        return is_launcher([" ".join(tokens) + " "])
    if program in script.ENVIRONMENT and tokens[1:2] == ["run"]:  # such as `uv run torchrun`
        python = any(PYTHON.fullmatch(os.path.basename(token)) or token.endswith(".py") for token in tokens)
        return python or is_launcher([" ".join(tokens) + " "])
    return (
        bool(PYTHON.fullmatch(program)) or is_launcher([" ".join(tokens[:2]) + " "]) or program in ("mpirun", "mpiexec")
    )


def _only(
    launches: list[tuple[shell.Command, list[str]]], steps: list[shell.Command], command: list[str] | None
) -> tuple[shell.Command, list[str]]:
    """Returns the one line that trains. Raises InputError if there is none, or if it can't be known which."""
    under = [one for one in launches if one[1][0] == "srun"] or launches
    under = [one for one in under if not _ONE_LINER.search(" ".join(one[1]))] or under
    started = [one for one in under if is_detected(one[1])] or under
    if command:
        return started[0] if started else (steps[-1] if steps else shell.Command((), 1, 0), ["true"])
    if not started and (submits := next((step for step in steps if step.tokens[0].text == "sbatch"), None)):
        raise InputError(
            f"line {submits.line} submits another script with sbatch: convert that script, from a file of its own"
        )
    if not started:
        raise InputError(
            "no line starts the training: write srun torchrun train.py, or give --command 'torchrun train.py'"
        )
    if len({tuple(tokens) for _, tokens in started}) > 1:
        places = " and ".join(f"line {step.line} ({shown(step.text)})" for step, _ in started)
        raise InputError(
            f"{places} both train: one job is one training: write a file for each, or choose with --command"
        )
    step, tokens = started[0]
    if step.depth:
        raise InputError(
            f"line {step.line}: the training is started inside a loop, condition or function, which a job has none of:"
            " write the one command that shall run, or give it with --command"
        )
    return step, tokens


def _without_srun(tokens: list[str], allocation: sbatch.Allocation, where: str, draft: Draft) -> list[str]:
    """Returns the command of srun. Its options override those of the script."""
    if tokens[0] != "srun":
        return tokens
    options, rest = sbatch.split(tokens[1:])
    sbatch.take(
        [(name, value) for name, value in options if not shell.unknown(value) or not sbatch.is_needed(name)],
        f"{where} srun",
        allocation,
        draft,
    )
    for name, value in options:
        if shell.unknown(value) and sbatch.is_needed(name):
            draft.note(How.NOT_CARRIED, f"{where} srun {name}", "its value can't be known here", value)
    while rest and re.fullmatch(r"\$\{?\w+(\[@\])?\}?", rest[0]):
        draft.note(How.NOT_CARRIED, f"{where} srun", "options of srun whose value can't be known here", rest[0])
        rest = rest[1:]
    if ":" in rest:
        raise InputError(f"{where}: srun starts several programs, and all pods of a job are the same: give --command")
    if not rest:
        raise InputError(f"{where}: srun starts nothing that can be known here: give it with --command")
    return rest


def _container(
    allocation: sbatch.Allocation, image: str | None, env: dict[str, str], directory: str, where: str, draft: Draft
) -> Object:
    own = allocation.options.get("--container-image") or allocation.options.get("--image")
    if own and image:
        draft.note(How.NOT_CARRIED, where, "the image of the script: --image takes its place", own)
    if own and not shell.unknown(own) and not own.startswith(("/", ".")) and not own.endswith((".sqsh", ".sif")):
        own = re.sub(r"^(?:docker://|docker:)", "", own).replace("#", "/")
    else:
        own = None
    if not (image or own):
        raise InputError(pods.NO_IMAGE)
    container: Object = {"name": "trainer", "image": image or own}
    if workdir := allocation.options.get("--container-workdir") or directory:
        if os.path.isabs(workdir) and not shell.unknown(workdir):
            container["workingDir"] = workdir
        else:
            draft.note(
                How.NOT_CARRIED,
                where,
                "the directory is relative to your shell: set workingDir of the container",
                workdir,
            )
    container["env"] = [{"name": name, "value": value} for name, value in env.items()]
    if resources := amounts.resources(allocation):
        container["resources"] = resources
    return container


def _spec(allocation: sbatch.Allocation, name: str, draft: Draft) -> None:
    given = allocation.options.get("--job-name")
    where = f"{allocation.places['--job-name']} --job-name" if given else "the name of the file"
    draft.put("metadata.name", meta.valid_name(given or name, draft, where))
    if (limit := allocation.options.get("--time")) and (
        deadline := amounts.seconds(limit, allocation.places["--time"])
    ):
        draft.put("spec.activeDeadlineSeconds", deadline)
