"""Converts the command line of a launcher: torchrun, accelerate launch or deepspeed. Pure."""

from __future__ import annotations

import re

from dtj.convert import pods, shell
from dtj.convert.fields import REDIRECTED, Draft, How
from dtj.convert.program import Size, settle
from dtj.errors import InputError
from dtj_agent.workers.launchers import is_launcher
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
        raise InputError(
            "no container image: a pod needs one with Python 3.9, torch and the script: give --image, for instance"
            " --image pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime"
        )
    try:
        steps = shell.commands(text)
    except ValueError as error:
        raise InputError(str(error)) from error
    values = {"@": ""}
    env: dict[str, str] = {}
    found: list[tuple[shell.Command, list[str]]] = []
    for step in steps:
        tokens = shell.unwrapped(shell.expand(step.tokens, values))
        own: dict[str, str] = {}
        if shell.is_export(step):
            _assign(step, values, env, draft)
            continue
        while tokens and (match := shell.ASSIGNMENT.fullmatch(tokens[0])):
            own[match[1]] = match[2]
            tokens = tokens[1:]
        if tokens and is_launcher([" ".join(tokens) + " "]) and tokens[0] != "echo":
            found.append((step, tokens))
            env |= own
        elif tokens:
            draft.note(
                How.NOT_CARRIED,
                f"line {step.line}",
                "only the launcher's command is: do it in the image or the script",
                step.text,
            )
    if len(found) != 1 or found[0][0].depth:
        lines = ", ".join(str(step.line) for step, _ in found)
        raise InputError(
            (
                f"lines {lines} start a launcher"
                if len(found) > 1
                else "no line by itself starts a launcher"
                if not found
                else f"line {lines} starts a launcher inside a loop or condition"
            )
            + ": write one command, outside of loops and conditions, such as torchrun train.py"
        )
    step, tokens = found[0]
    where = f"line {step.line}"
    if step.redirected:
        draft.note(How.NOT_CARRIED, where, REDIRECTED, step.redirected)
    container: Object = {"name": "trainer", "image": image, "env": [{"name": key, "value": env[key]} for key in env]}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    template: Object = {"spec": {"containers": [container]}}
    draft.put("metadata.name", name)
    settle(tokens, container, draft, where, Size(values=values))
    if gpus is None:
        draft.note(
            How.NOT_CARRIED, where, "a command line reserves no GPUs: give --gpus N, the number of each pod; 0 for none"
        )
    pods.finish(template, container, draft, where)
    return draft


def _assign(step: shell.Command, values: dict[str, str], env: dict[str, str], draft: Draft) -> None:
    for name, token in shell.assignments(step):
        value = shell.expand_text(token.text, values).replace(shell.LITERAL_DOLLAR, "$")
        if shell.unknown(value) and not token.array:
            draft.note(
                How.NOT_CARRIED,
                f"line {step.line} {name}",
                "its value can't be known here: write it in the file",
                value,
            )
            continue
        values[name] = value
        if re.match(r"(?:export|declare)$", step.tokens[0].text):
            env[name] = value
        exported = name in env
        draft.note(
            How.OTHER,
            f"line {step.line} {name}",
            "env of the container" if exported else "filled in where it is used",
            value,
        )
