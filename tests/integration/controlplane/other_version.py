"""`dtj-operator` of another version, with other defaults, bounds, values and agent.

python other_version.py JSON FLAGS...

JSON may have `backends` (the values of spec.backend), `replicas` (the upper bound) and
`maxRestarts` (the default).
"""

from __future__ import annotations

import json
import sys
from typing import Literal

from dtj_core import api
from dtj_core.api import v1alpha1
from dtj_core.api.restart import RestartSettings

_other = json.loads(sys.argv.pop(1))


def _change() -> None:
    spec, restart = v1alpha1.Spec, RestartSettings
    if "maxRestarts" in _other:
        restart.model_fields["max_restarts"].default = _other["maxRestarts"]
        restart.model_rebuild(force=True)
        spec.model_fields["restart"].default = restart()
    if "replicas" in _other:
        bound = spec.model_fields["replicas"]
        bound.metadata = [type(each)(_other["replicas"]) if hasattr(each, "le") else each for each in bound.metadata]
    if "backends" in _other:
        spec.model_fields["backend"].annotation = Literal[tuple(_other["backends"])]  # type: ignore[assignment]
    spec.model_rebuild(force=True)
    api.DistributedTrainingJob.model_rebuild(force=True)


if __name__ == "__main__":
    _change()
    from dtj_operator import app

    sys.exit(app.main())
