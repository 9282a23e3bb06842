"""Takes a command out of `apptainer exec IMAGE COMMAND`, also under the name singularity. Pure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from dtj.convert.fields import Draft
from dtj.convert.sbatch import Allocation
from dtj.errors import InputError
from dtj_core.api.launcher_flags import How

PROGRAMS = frozenset({"apptainer", "singularity"})
_VOLUMES = "write volumes and volumeMounts in spec.template"
_ENV = "write variables in the container's env"
_OTHER = "an option of Apptainer without a counterpart: set it in spec.template"
# Options with a value, and what to do instead; every other option has none.
_VALUED = {
    "-B": _VOLUMES,
    "--bind": _VOLUMES,
    "--mount": _VOLUMES,
    "-o": _VOLUMES,
    "--overlay": _VOLUMES,
    "-S": _VOLUMES,
    "--scratch": _VOLUMES,
    "-W": _VOLUMES,
    "--workdir": _VOLUMES,
    "-H": _VOLUMES,
    "--home": _VOLUMES,
    "--env": _ENV,
    "--env-file": _ENV,
    "--pwd": "set workingDir of the container",
    "--cwd": "set workingDir of the container",
    "--app": _OTHER,
    "--add-caps": _OTHER,
    "--drop-caps": _OTHER,
    "--security": _OTHER,
    "--apply-cgroups": _OTHER,
    "--cpus": _OTHER,
    "--memory": _OTHER,
    "--dns": _OTHER,
    "--hostname": _OTHER,
    "--network": _OTHER,
    "--network-args": _OTHER,
    "--fusemount": _OTHER,
}


@dataclass
class Inside:
    """A command, its image, and the options of the container that it ran in."""

    image: str = ""
    options: list[tuple[str, str]] = field(default_factory=list)
    command: list[str] = field(default_factory=list)


def inside(tokens: Sequence[str]) -> Inside | None:
    """Returns the parts of `apptainer exec` and `apptainer run`; None for any other command."""
    if not tokens or os.path.basename(tokens[0]) not in PROGRAMS:
        return None
    found = Inside()
    rest = _options(list(tokens[1:]), found)
    if rest[:1] not in (["exec"], ["run"]):
        return None
    image, *found.command = _options(rest[1:], found) or [""]
    found.image = image
    return found


def unwrap(tokens: list[str], allocation: Allocation, where: str, draft: Draft) -> list[str]:
    """Returns the command inside of a container, whose image becomes the allocation's; any other command as it is.

    Raises InputError if the container runs its own command.
    """
    found = inside(tokens)
    if found is None:
        return tokens
    for name, value in found.options:
        if name in _VALUED:
            draft.note(How.NOT_CARRIED, f"{where} {name}", _VALUED[name], value)
        else:
            draft.note(How.NOT_NEEDED, f"{where} {name}", "the pod is the container, with the GPUs that it requests")
    allocation.options["--container-image"] = found.image
    if not found.command:
        raise InputError(f"{where}: the image's own command is not in the file: give it with --command")
    return found.command


def _options(tokens: list[str], into: Inside) -> list[str]:
    """Adds the options in front to `into`, and returns what follows them."""
    while tokens and tokens[0].startswith("-"):
        name, equals, value = tokens.pop(0).partition("=")
        if not equals and name in _VALUED and tokens:
            value = tokens.pop(0)
        into.options.append((name, value))
    return tokens
