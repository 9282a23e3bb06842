"""The option --sick-nodes: a JSON object, each key of which is a field of SickNodeSettings."""

from __future__ import annotations

import json
from typing import Any

from dtj_core.plan.node_signs import SickNodeSettings
from dtj_operator.errors import OptionError

NEVER = "none"
# Key of the option, field of the settings, least and largest number.
NUMBERS = (
    ("maxPercent", "max_percent", 1, 100),
    ("intervalSeconds", "interval_seconds", 1, 86400),
    ("jobIntervalSeconds", "job_interval_seconds", 1, 86400),
)
LISTS = ("conditions", "labels", "taints")


def read_sick_nodes(text: str) -> SickNodeSettings | None:
    """Parses the option; None if jobs leave no node. Raises OptionError."""
    if text == NEVER:
        return None
    try:
        given = json.loads(text)
    except ValueError as error:
        raise _error(text, "is no JSON") from error
    if not isinstance(given, dict):
        raise _error(text, "is no JSON object")
    known = {*LISTS, "cordon", *(key for key, *_ in NUMBERS)}
    if unknown := sorted(given.keys() - known):
        raise _error(text, f"has the unknown key {unknown[0]}; known are {', '.join(sorted(known))}")
    fields: dict[str, Any] = {}
    for key in LISTS:
        entries = given.get(key)
        if entries is None:
            continue
        if not isinstance(entries, list) or not all(isinstance(e, str) and e.partition("=")[0] for e in entries):
            raise _error(text, f'{key} is no list of names such as ["XidCriticalError", "KernelReady=False"]')
        fields[key] = tuple(entries)
    if "cordon" in given:
        if not isinstance(given["cordon"], bool):
            raise _error(text, "cordon must be true or false")
        fields["cordon"] = given["cordon"]
    for key, name, least, largest in NUMBERS:
        number = given.get(key)
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int | float) or not least <= number <= largest:
            raise _error(text, f"{key} is no number from {least} to {largest}")
        fields[name] = number
    return SickNodeSettings(**fields)


def _error(text: str, what: str) -> OptionError:
    return OptionError(f"--sick-nodes: {text[:200]}: {what}; {NEVER} turns it off, and {{}} takes the defaults")
