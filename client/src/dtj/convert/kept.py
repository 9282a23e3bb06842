"""Text for a launcher that stays in its command: the agent starts one for each pod. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from dtj.convert import shell
from dtj_contract import names
from dtj_core.api.launcher_place import OWN_FLAGS

AGENT_SETS = frozenset(names.TORCHRUN_ENV)
# Variables of the environment that a launcher in the pod reads as its flags.
EXPORTS = "export PET_NNODES=$WORLD_SIZE PET_NODE_RANK=$RANK PET_MASTER_ADDR=$MASTER_ADDR PET_MASTER_PORT=$MASTER_PORT"
PLACED_BY_FLAGS = {
    r"accelerate(?:(?:\s+|-)launch|\.commands)": ("accelerate", OWN_FLAGS["accelerate launch"]),
    r"composer(?=\s|\.cli)": ("composer", OWN_FLAGS["composer"]),
    r"deepspeed(?=\s|\.launcher)": ("deepspeed", OWN_FLAGS["deepspeed"]),
}
"""Launchers that are not made to read the variables, with the flags that give them their place, by a pattern."""


def joined(command: Sequence[str], of_script: bool) -> str:
    """Returns a command for a shell, which reads the variables that a script has left in it."""
    return " ".join(map(shell.quoted, command)) if of_script else shlex.join(command)


def exports(processes: int | None) -> str:
    """Returns the command that gives a launcher its place, and the number of its ranks if it names none."""
    return EXPORTS + (f" PET_NPROC_PER_NODE={processes}" if processes else "")


def kubelet_to_shell(text: str) -> str:
    """Returns `text` with `$(RANK)` as `$RANK`: the agent sets such variables, so the kubelet does not know them."""
    return re.sub(
        r"\$\((PET_[A-Z_]+|[A-Z_]+)\)", lambda m: f"${m[1]}" if m[1] in AGENT_SETS or "PET" in m[1] else m[0], text
    )
