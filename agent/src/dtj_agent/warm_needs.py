"""The needs of a process from which ranks are forked, as their engine states them: the agent hands them to it.

On the standard library alone, and apart from both, because neither imports the other.
"""

from __future__ import annotations

import json
from typing import NamedTuple, Tuple


class WarmNeeds(NamedTuple):
    """The needs of one engine's warm process (dtj_agent.warm)."""

    modules: Tuple[str, ...] = ()
    """Modules that it imports whatever the script does. Without the first one it is of no use."""
    per_rank: Tuple[str, ...] = ()
    """Prefixes of the variables of `Engine.environment`."""
    per_attempt: Tuple[str, ...] = ()
    """Those of them that each attempt changes."""
    coordinator: Tuple[str, ...] = ()
    """The one of them whose first address is that of rank 0, where a client that finds nobody waits for a second."""
    import_time: Tuple[str, ...] = ()
    """Prefixes of the variables that libraries read while they are imported: a rank with others is not forked."""
    script_sets: Tuple[str, ...] = ()
    """Prefixes of the variables that native code may read while it is imported, which nothing can observe: if a
    script sets one, none of its imports is done ahead."""
    log_levels: Tuple[str, ...] = ()
    """Prefixes of those of them that change only what is logged. Imports ahead log as the pod's variables ask for."""

    devices: Tuple[str, ...] = ()
    """Values that are set once the framework has opened its devices, as MODULE:ATTRIBUTE. The script may have to join
    the group before, so no import ahead may open them."""

    def to_json(self) -> str:
        """Returns the text that `from_json` reads."""
        return json.dumps(self)


def from_json(text: str) -> WarmNeeds:
    """Returns the needs that `to_json` has written."""
    return WarmNeeds(*map(tuple, json.loads(text)))
