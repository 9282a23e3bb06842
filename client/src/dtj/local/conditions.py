"""The conditions of a local job that other modules ask for."""

from __future__ import annotations

from dtj_contract import names
from dtj_core.plan.model import Object


def finished(job: Object) -> bool:
    """Returns whether the job is Complete or Failed."""
    return is_true(job, names.COMPLETE) or is_true(job, names.FAILED)


def is_true(job: Object, condition: str) -> bool:
    """Returns whether the job's status has this condition with status True."""
    conditions = job.get("status", {}).get("conditions") or []
    return any(each["type"] == condition and each["status"] == "True" for each in conditions)
