"""The operator listens to agents: what they report is written before any poll could have asked for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.controlplane.kubelet import Kubelet
from tests.integration.controlplane.support import Agents, Objects, Operator, running, wait_until

FAILURE = {"attempt": 1, "rank": 1, "ordinal": 1, "pod": "j-1", "reason": "WorkerFailed", "message": "exit code 7"}


def requests(operator: Operator, result: str) -> float:
    _, text = operator.get("/metrics")
    found = re.search(rf'dtj_agent_requests_total{{result="{result}"}} ([0-9.]+)', text)
    return float(found[1]) if found else 0.0


@pytest.mark.timeout(300)
def test_failure_is_written_while_the_agent_is_listened_to(
    start_operator: Callable[..., Operator],
    submit: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
) -> None:
    agents.patience = 3600.0
    operator = start_operator().ready()
    uid = submit()["metadata"]["uid"]
    agents.statuses[uid] = running()
    wait_until("the job runs", lambda: objects.condition("j", "Running"), timeout=60)
    asked = agents.asked
    agents.statuses[uid] = running(phase="Rendezvous", phaseReason="WorkerFailed", failures=[FAILURE])
    wait_until("the job restarts", lambda: objects.condition("j", "Restarting"), timeout=60)
    agents.statuses[uid] = running(attempt=2, failures=[FAILURE])
    wait_until("the next attempt", lambda: objects.condition("j", "Running"), timeout=60)
    assert agents.asked - asked <= 12, "an answer for each change, and a few while the group does not run"
    assert requests(operator, "answered") >= 3
    assert operator.terminate(30) == 0, "the request that waits delays no end"
