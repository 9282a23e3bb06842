"""Converts the command line of a launcher: torchrun, accelerate launch, composer or deepspeed. Pure."""

from __future__ import annotations

from dtj.convert import pods, script, shell
from dtj.convert.fields import Draft
from dtj.convert.program import Size, settle
from dtj.errors import InputError
from dtj_agent.workers.launchers import is_launcher
from dtj_core.api.launcher_flags import How
from dtj_core.plan.model import Object


def is_command(text: str) -> bool:
    """Returns whether a text is a launcher's command line, perhaps in a shell script."""
    body = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return is_launcher([f"{body} "])


def convert(text: str, image: str | None, name: str, gpus: int | None = None) -> Draft:
    """Returns the job of a command line, or of a shell script with one; `gpus` is the number of each pod.

    Raises InputError for what can't be a job.
    """
    draft = Draft()
    if not image:
        raise InputError(pods.NO_IMAGE)
    try:
        steps = shell.commands(text)
    except ValueError as error:
        raise InputError(str(error)) from error
    values = {"@": "", "*": ""}
    env: dict[str, str] = {}
    found: list[tuple[shell.Command, list[str]]] = []
    for step in steps:
        tokens = shell.unwrapped(shell.expand(step.tokens, values, mark=True))
        own: dict[str, str] = {}
        if shell.is_export(step):
            script.assign(step, values, env, draft)
            continue
        while tokens and (match := shell.ASSIGNMENT.fullmatch(tokens[0])):
            own[match[1]] = shell.plain(match[2])
            tokens = tokens[1:]
        if tokens and is_launcher([" ".join(tokens) + " "]) and tokens[0] != "echo":
            found.append((step, tokens))
            env |= own
        elif tokens:
            how, why = script.fate(tokens)
            draft.note(how, f"line {step.line}", why, step.text)
    if len(found) != 1 or found[0][0].depth:
        lines = ", ".join(str(step.line) for step, _ in found)
        raise InputError(
            f"lines {lines} start a launcher: one job is one training: write a file for each"
            if len(found) > 1
            else "no line by itself starts a launcher: write one command, such as torchrun train.py"
            if not found
            else f"line {lines} starts a launcher inside a loop, condition or function: write one command outside of"
            " them, such as torchrun train.py"
        )
    step, tokens = found[0]
    where = f"line {step.line}"
    script.note_redirections(step, where, draft)
    container: Object = {"name": "trainer", "image": image, "env": [{"name": key, "value": env[key]} for key in env]}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    template: Object = {"spec": {"containers": [container]}}
    draft.put("metadata.name", name)
    settle(tokens, container, draft, where, Size(values=values))
    script.note_arguments(step, where, draft)
    if gpus is None:
        draft.note(
            How.NOT_CARRIED, where, "a command line reserves no GPUs: give --gpus N, the number of each pod; 0 for none"
        )
    pods.finish(template, container, draft, where)
    return draft
