"""No report of a pod makes the planner fail, or yields a status that the API server rejects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dtj_core.api.status import Status
from dtj_core.plan import plan
from dtj_core.plan.model import Observed
from tests.unit.plan.objects import NOW, SETTINGS, agent, job, pods, service, started

STEP = {"step": 1, "totalSteps": 10**10, "time": 253402300799.0}


@pytest.mark.parametrize(
    "reports",
    [
        [{"progress": {"step": 10**400, "loss": 10**400}}],
        [{"productiveSeconds": 1e308, "startTime": start} for start in (NOW, NOW + 1, NOW + 2)],
        [{"progress": STEP | {"time": 253402300700.0}}, {"progress": STEP | {"step": 20_000}}],
        [{"recoveries": [{"attempt": 1, "seconds": {f"phase{i}": 1.0 for i in range(32)}}]}],
        [{"progress": {"metrics": {f"m{i}": 1 for i in range(40)}}}],
    ],
    ids=["an int no float holds", "sums beyond a float", "an end after 9999", "made-up phases", "many metrics"],
)
def test_any_agent_report_yields_a_status_within_the_schema(reports: list[dict[str, Any]]) -> None:
    stored, child = started()
    for seconds, report in enumerate(reports):
        seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent(**report))
        wanted = plan(stored, seen, NOW + 60 * seconds, SETTINGS)
        # Without lastUpdateTime no write is throttled: every report must be written.
        stored = job({k: v for k, v in wanted.status.items() if k != "lastUpdateTime"})
        json.dumps(stored["status"], allow_nan=False)
        Status.model_validate(stored["status"], by_alias=True, by_name=False)
