"""Hints for fields of a job file that are misplaced, misspelled or of the wrong type. Pure."""

from __future__ import annotations

import difflib
import re
from typing import Any

from dtj_core import api
from dtj_core.plan.model import Object

CONTAINER = "spec.template.spec.containers[0]"
ELSEWHERE = {
    "spec.resources": f"write it in {CONTAINER}.resources",
    "spec.env": f"write it in {CONTAINER}.env",
    "spec.volumes": "write it in spec.template.spec.volumes",
    "spec.volumeMounts": f"write it in {CONTAINER}.volumeMounts",
    "spec.nodeSelector": "write it in spec.template.spec.nodeSelector",
    "spec.tolerations": "write it in spec.template.spec.tolerations",
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
        return f"{violation}, not {value!r}"
    return str(violation)


def _instead(path: str) -> str:
    if path in ELSEWHERE:
        return f"; {ELSEWHERE[path]}"
    parent, _, field = path.rpartition(".")
    if parent != "spec":
        return ""
    known = [info.alias or name for name, info in api.Spec.model_fields.items()]
    near = difflib.get_close_matches(field, known, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _at(job: Object, path: str) -> Any:
    value: Any = job
    for match in _PART.finditer(path):
        try:
            value = value[int(match[1])] if match[1] else value[match[2]]
        except (KeyError, IndexError, TypeError):
            return None
    return value
