"""A change of `spec.replicas` while a job runs, under the rules of the CRD."""

from __future__ import annotations

from typing import Any

from dtj_core.api.errors import InvalidJob, Violation
from dtj_core.api.read import validate
from dtj_core.api.v1alpha1 import Spec

FIELD = "replicas"


def scaled(obj: dict[str, Any], replicas: int) -> dict[str, Any]:
    """Returns the stored job with another number of pods, as after `kubectl scale`.

    Raises InvalidJob where the API server would reject the number.
    """
    new = {**obj, "spec": {**obj["spec"], FIELD: replicas}}
    was, spec = (validate({key: each[key] for key in each if key != "status"}).spec for each in (obj, new))
    if spec.replicas == was.replicas:
        return obj
    if was.elastic is None and not was.suspend:
        # The rule compares two objects, so it is known to the API server alone.
        rule = next(rule for rule in Spec.rules if rule.field == FIELD and rule.holds is None)
        raise InvalidJob((Violation(f"spec.{FIELD}", rule.message),))
    return {**new, "metadata": {**obj["metadata"], "generation": obj["metadata"].get("generation", 0) + 1}}
