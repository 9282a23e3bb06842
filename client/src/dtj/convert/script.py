"""Reads the lines of a shell script that do not train: variables, and commands that are left out. Pure."""

from __future__ import annotations

import re

from dtj.convert import shell
from dtj.convert.fields import REDIRECTED, Draft, shown
from dtj.errors import InputError
from dtj_core.api.launcher_flags import How

IMAGE = "the image holds what the training imports: build it with that, and name it with --image"
OTHER = "the script is not run: do it in the training script, in the image, or in spec.template.spec.initContainers"
MANAGERS = frozenset({"conda", "mamba", "micromamba", "uv", "poetry", "pixi", "pipenv"})
"""Managers of environments, whose `run COMMAND` starts a command in one."""
ENVIRONMENT = MANAGERS | {"module", "source", ".", "pip", "pip3", "ml", "spack", "deactivate"}
IDLE = frozenset(
    {
        "echo",
        "set",
        "date",
        "hostname",
        "nvidia-smi",
        "printf",
        "pwd",
        "env",
        "scontrol",
        "sleep",
        "wait",
        "exit",
        "true",
        "which",
        "shopt",
        "unset",
        "printenv",
        "df",
        "free",
        "lscpu",
        "sinfo",
        "squeue",
        "trap",
        "shift",
        "ulimit",
        "kill",
        "clear",
        "break",
        "continue",
    }
)
FILES = frozenset(
    {
        "mkdir",
        "rmdir",
        "cp",
        "mv",
        "rm",
        "ln",
        "ls",
        "cat",
        "tar",
        "unzip",
        "rsync",
        "chmod",
        "touch",
        "find",
        "du",
        "test",
        "sbcast",
        "wget",
        "curl",
        "git",
    }
)
_NOTHING = "it changes nothing of the training"
_AGENT = "the agent sets what torchrun sets, for each rank"
_COUNT = re.compile(r"N?NODES?")
_NO_VALUE = "no value is known here: write it in the container's env"
_SELF = "the image's own {0} is not known here: write the whole value in the container's env"
_OF_SLURM = re.compile(r"(?:MASTER_(?:ADDR|PORT)|WORLD_SIZE|N?NODES?|RANK|LOCAL_RANK|NODE_RANK|SLURM_\w+|PET_\w+)$")


def assign(step: shell.Command, values: dict[str, str], env: dict[str, str], draft: Draft) -> None:
    """Keeps what a line sets in `values`, where that can be known, and what it exports in `env`, for the ranks."""
    before = len(draft.notes)
    _assign(step, values, env, draft)
    if len(draft.notes) == before:  # such as `declare -A NAME`
        draft.note(How.NOT_NEEDED, f"line {step.line}", _NOTHING, step.text)


def _assign(step: shell.Command, values: dict[str, str], env: dict[str, str], draft: Draft) -> None:
    exported = step.tokens[0].text == "export" or any(token.text == "-x" for token in step.tokens)
    for token in step.tokens[1:] if exported else ():
        if "=" not in token.text and not token.text.startswith("-"):
            _export(token.text, step, values, env, draft)
    if not step.depth:
        note_arguments(step, f"line {step.line}", draft)
    if re.match(r"<\w[^<>]*>", step.redirected):  # NAME=<YOUR_NAME>
        text = "stands for a value that is not in the file: write it there"
        for name, _ in shell.assignments(step):
            draft.note(How.NOT_CARRIED, f"line {step.line} {name}", text, step.redirected.replace(" >", ">"))
            values.pop(name, None)
        return
    for name, token in shell.assignments(step):
        value = shell.expand_text(token.text, values)
        if name in shell.unknown(value) and not exported:  # nothing has set it before
            value = shell.expand_text(value, {name: ""})
        text = shell.plain(value)
        where = f"line {step.line} {name}"
        if token.array and not step.depth:
            values[name] = value
            draft.note(How.OTHER, where, "filled in where it is used", text)
        elif step.depth:
            why = "set inside a condition or loop: write what shall hold in the container's env or the command"
            draft.note(How.NOT_CARRIED, where, why, text)
            if any(one.isdecimal() for one in shell.unknown(value)):
                values.pop(name, None)  # the script's own arguments decide it, and not the value from before
        elif _OF_SLURM.match(name) and (shell.unknown(value) or not _COUNT.fullmatch(name)):
            if not shell.unknown(value):
                values[name] = value
            draft.note(How.NOT_NEEDED, where, _AGENT, text)
        elif name in (left := shell.unknown(value)) and exported:
            draft.note(How.NOT_CARRIED, where, _SELF.format(name), text)
        elif left:
            held = "$(…)" not in left or shell.is_more_than_output(value)
            if not exported and held:
                draft.note(How.OTHER, where, f"filled in where it is used, but for {', '.join(left)}", text)
            elif not exported and any(_OF_SLURM.match(one) for one in left):
                draft.note(How.NOT_NEEDED, where, _AGENT, text)
            else:
                why = f"depends on {', '.join(left)}: write its value in the container's env"
                draft.note(How.NOT_CARRIED, where, why, text)
            if held:
                values[name] = value
        else:
            values[name] = value
            if exported:
                env[name] = text
            draft.note(How.OTHER, where, "env of the container" if exported else "filled in where it is used", text)


def note_arguments(step: shell.Command, where: str, draft: Draft) -> None:
    """Notes that a line passes the script's own arguments on, which are not in the file."""
    if re.search(r"\$\{?[@*]", step.text):
        text = "the arguments that you give the script are not in the file: write them behind the command"
        draft.note(How.NOT_CARRIED, where, text, "$@")


def note_redirections(step: shell.Command, where: str, draft: Draft) -> None:
    """Notes where output and input of the training went. Raises InputError if its program may be a here-document."""
    if re.search(r"(?:^|\s)\d*<<", step.redirected):
        raise InputError(
            f"{where}: the command reads its program or input from a here-document ({shown(step.redirected)}), which"
            " no pod has: write a file into the image, and choose the command with --command"
        )
    if re.search(r"(?:^|\s)\d*<(?! ?/dev/null)", step.redirected):
        text = "a rank has no input, and its output is in the pod's log: let the script open the file, which must be"
        draft.note(How.NOT_CARRIED, where, f"{text} in the image or on a volume", step.redirected)
    elif step.redirected:
        draft.note(How.NOT_CARRIED, where, REDIRECTED, step.redirected)


def _export(name: str, step: shell.Command, values: dict[str, str], env: dict[str, str], draft: Draft) -> None:
    """Exports a variable that was set before, as `export NAME` does."""
    where = f"line {step.line} {name}"
    if step.depth:
        draft.note(How.NOT_CARRIED, where, f"exported inside a condition or loop; {OTHER}")
    elif _OF_SLURM.match(name):
        draft.note(How.NOT_NEEDED, where, _AGENT)
    elif name in values and not shell.unknown(values[name]):
        env[name] = shell.plain(values[name])
        draft.note(How.OTHER, where, "env of the container", env[name])
    else:
        draft.note(How.NOT_CARRIED, where, _NO_VALUE)


def fate(tokens: list[str]) -> tuple[How, str]:
    """Returns what becomes of a command that does not train, and why."""
    if tokens[0] in ENVIRONMENT:
        return How.NOT_CARRIED, IMAGE
    if tokens[0] == "tee":
        return How.NOT_CARRIED, REDIRECTED
    program = tokens[1] if tokens[0] == "srun" and len(tokens) > 1 else tokens[0]
    return (How.NOT_NEEDED, _NOTHING) if tokens[0] in IDLE or program in IDLE else (How.NOT_CARRIED, OTHER)
