"""Hints for fields of a job file that are misplaced, misspelled or of the wrong type. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

from dtj_core import api
from dtj_core.api.crd import schema
from dtj_core.plan.model import Object

CONTAINER = "spec.template.spec.containers[0]"
ELSEWHERE = {
    "spec.volumes": "write it in spec.template.spec.volumes",
    "spec.volumeMounts": f"write it in {CONTAINER}.volumeMounts",
    "spec.affinity": "write it in spec.template.spec.affinity",
    "spec.securityContext": "write it in spec.template.spec.securityContext",
    "spec.serviceAccountName": "write it in spec.template.spec.serviceAccountName",
    "spec.hostNetwork": "write spec.network: {hostNetwork: …}",
    "spec.dnsPolicy": "write spec.network: {dnsPolicy: …}",
    "spec.nproc_per_node": "write spec.processesPerPod",
    "spec.maxRestarts": "write spec.restart: {maxRestarts: …}",
    "spec.backoffLimit": "write spec.restart: {maxRestarts: …}",
    "spec.command": "write spec.entrypoint: {script: …} or {module: …}",
    "spec.args": "write it in spec.entrypoint.args",
    "spec.checkpoint.claimName": "write volume: {claimName: …}",
    "spec.checkpoint.volume.emptyDir": "an emptyDir is lost with its pod: write claimName, hostPath or source",
}
UNKNOWN = "unknown field"
_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def explain(violation: api.Violation, job: Object) -> str:
    """Returns the violation in one line, with the value in the file and the remedy, where one is known."""
    value = _at(job, violation.path)
    if violation.message == UNKNOWN:
        return f"{violation}{_instead(violation.path)}"
    if isinstance(value, bool | int | float) and "valid string" in violation.message:
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        return f'{violation.path}: must be a string, not {shown}; quote it: "{shown}"'
    if violation.message.startswith("Input should be") and isinstance(value, str | int | float):
        allowed = [each for each in _field(violation.path).get("enum", ()) if isinstance(each, str)]
        return f"{violation}, not {value!r}{_near(value, allowed)}"
    return str(violation)


def _instead(path: str) -> str:
    if path in ELSEWHERE:
        return f"; {ELSEWHERE[path]}"
    parent, _, field = path.rpartition(".")
    return _near(field, _field(parent).get("properties", ()))


def _near(given: Any, known: Iterable[str]) -> str:
    """Returns a question for the known name that is nearest to `given`; empty if none is near."""
    by_case = {one.lower(): one for one in known}
    near = difflib.get_close_matches(str(given).lower(), by_case, 1)
    return f"; did you mean {by_case[near[0]]}?" if near else ""


def _field(path: str) -> Any:
    """Returns the schema of a field; empty if the CRD has no such field."""
    node: Any = schema()
    for match in _PART.finditer(path):
        node = node.get("items" if match[1] else "properties", {})
        node = node if match[1] else node.get(match[2], {})
    return node


def _at(job: Object, path: str) -> Any:
    value: Any = job
    for match in _PART.finditer(path):
        try:
            value = value[int(match[1])] if match[1] else value[match[2]]
        except (KeyError, IndexError, TypeError):
            return None
    return value
