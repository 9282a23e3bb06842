"""The variables that the agent sets for a rank, as far as an import must not, or may, have read them."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from dtj_agent.warm_needs import WarmNeeds

# With every engine.
_PER_RANK = frozenset(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "DTJ_ATTEMPT", "DTJ_STARTED_AT"))
_PER_RANK_PREFIXES = ("KUBEFLOW_TRAINER_SERVER_",)
_PER_ATTEMPT = frozenset((
    "DTJ_ATTEMPT", "DTJ_STARTED_AT", "DTJ_CHECKPOINT_KEEP", "KUBEFLOW_TRAINER_SERVER_URL",
    "KUBEFLOW_TRAINER_SERVER_TOKEN",
))  # fmt: skip
_ADDRESS = re.compile(r"(?:\[[\da-fA-F:]+\]|[\w.-]+):\d+")


class RankVariables(NamedTuple):
    """Those of one engine."""

    needs: WarmNeeds

    def is_per_rank(self, name: str) -> bool:
        """Returns whether a variable may differ between ranks, so that a process of all ranks can't know it."""
        return name in _PER_RANK or name.startswith((*_PER_RANK_PREFIXES, *self.needs.per_rank))

    def is_per_attempt(self, name: str) -> bool:
        """Returns whether a variable may differ between the attempts of a rank, so that nothing can know it ahead."""
        return name in _PER_ATTEMPT or name in self.needs.per_attempt

    def coordinator(self, own: Mapping[str, str]) -> str:
        """Returns the address of rank 0, the first one in the variable; empty for rank 0 itself, and without one."""
        if own.get("RANK") == "0":
            return ""
        found = (_ADDRESS.search(own.get(name, "")) for name in self.needs.coordinator)
        return next((each.group() for each in found if each), "")

    def of_native_code(self, changed: Mapping[str, Sequence[str]]) -> List[str]:
        """Returns the variables that the script sets and that native code may read, so that it must import all.

        `changed`: see learned.Learned.
        """
        script = [name for name, by in changed.items() if not by and name.startswith(self.needs.script_sets)]
        return sorted(name for name in script if not name.startswith(self.needs.log_levels))

    def lasting(self, order: Mapping[str, Any]) -> Tuple[object, Dict[str, str]]:
        """Returns the part of an order of the warm process that is the same in each attempt while the group has its
        size.

        Imports ahead for one order are right for another one if both have the same.
        """
        own = {name: value for name, value in order["own"].items() if not self.is_per_attempt(name)}
        return order["kept"], own
