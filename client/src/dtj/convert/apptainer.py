"""Takes a command out of `apptainer exec IMAGE COMMAND`, `singularity exec` and `shifter COMMAND`. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dtj.convert.fields import Draft
from dtj.convert.sbatch import Allocation
from dtj.errors import InputError
from dtj_core.api.launcher_flags import How

WRAPPERS = frozenset({"apptainer_wrapper", "singularity_wrapper"})
"""Programs of a site that know their image themselves."""
PROGRAMS = WRAPPERS | {"apptainer", "singularity"}
SHIFTER = "shifter"
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
_OF_SHIFTER = {
    **dict.fromkeys(("-V", "--volume"), _VOLUMES),
    **dict.fromkeys(("-e", "--env", "--env-file"), _ENV),
    **dict.fromkeys(("-m", "--module"), "the image holds what the module adds: build it with that"),
    **dict.fromkeys(("-w", "--workdir"), "set workingDir of the container"),
    **dict.fromkeys(("-i", "--image"), "spec.image"),
}


@dataclass
class Inside:
    """A command, its image, and the options of the container that it ran in."""

    image: str = ""
    options: list[tuple[str, str]] = field(default_factory=list)
    command: list[str] = field(default_factory=list)


def inside(tokens: Sequence[str]) -> Inside | None:
    """Returns the parts of `apptainer exec`, `apptainer run` and `shifter`; None for any other command."""
    program = os.path.basename(tokens[0]) if tokens else ""
    found = Inside()
    if program == SHIFTER:
        found.command = _options(list(tokens[1:]), found, _OF_SHIFTER)
        found.image = next((value for name, value in found.options if name in ("-i", "--image")), "")
        return found
    if program not in PROGRAMS:
        return None
    rest = _options(list(tokens[1:]), found, _VALUED)
    if rest[:1] not in (["exec"], ["run"]):
        return None
    rest = _options(rest[1:], found, _VALUED)
    if program in WRAPPERS:
        found.command = rest
    else:
        found.image, *found.command = rest or [""]
    return found


def unwrap(tokens: list[str], allocation: Allocation, where: str, draft: Draft) -> list[str]:
    """Returns the command inside of a container, whose image becomes the allocation's; any other command as it is.

    Raises InputError if the container runs its own command.
    """
    found = inside(tokens)
    if found is None:
        return tokens
    program = os.path.basename(tokens[0])
    table = _OF_SHIFTER if program == SHIFTER else _VALUED
    for name, value in found.options:
        if name in table:
            how = How.OTHER if table[name] == "spec.image" else How.NOT_CARRIED
            draft.note(how, f"{where} {name}", table[name], value)
        else:
            draft.note(How.NOT_NEEDED, f"{where} {name}", "the pod is the container, with the GPUs that it requests")
    if found.image:
        allocation.options["--container-image"] = found.image
    else:
        draft.note(How.NOT_NEEDED, f"{where} {program}", "the pod is the container")
    if not found.command:
        raise InputError(f"{where}: the image's own command is not in the file: give it with --command")
    return found.command


def _options(tokens: list[str], into: Inside, valued: Mapping[str, str]) -> list[str]:
    """Adds the options in front to `into`, and returns what follows them."""
    while tokens and tokens[0].startswith("-"):
        name, equals, value = tokens.pop(0).partition("=")
        if not equals and name in valued and tokens:
            value = tokens.pop(0)
        into.options.append((name, value))
    return tokens
