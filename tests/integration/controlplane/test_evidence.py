"""Facts that only Kubernetes knows: a container killed for memory, and a start that gets nowhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dtj_core.plan.times import rfc3339
from tests.integration.controlplane.kubelet import Kubelet
from tests.integration.controlplane.support import Agents, Objects, Operator, running, wait_until


def test_container_killed_for_memory_is_named_in_the_failure(
    start_operator: Callable[..., Operator],
    run_job: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
) -> None:
    start_operator().ready()
    limits = {"resources": {"limits": {"memory": "2Gi"}}}
    uid = run_job(template={"spec": {"containers": [{"name": "trainer", **limits}]}})["metadata"]["uid"]
    now = time.time()
    ended = {
        "exitCode": 137, "reason": "OOMKilled", "startedAt": rfc3339(now - 60), "finishedAt": rfc3339(now),
        "containerID": "containerd://1",
    }  # fmt: skip
    again = {"running": {"startedAt": rfc3339(now + 1)}}
    kubelet.container_states["j-1"] = {"state": again, "lastState": {"terminated": ended}, "restartCount": 1}
    crash = {
        "attempt": 1, "rank": 1, "ordinal": 1, "pod": "j-1", "node": "w1", "reason": "AgentCrashed",
        "message": "the agent in pod j-1 crashed and was restarted", "time": now + 2,
    }  # fmt: skip
    agents.statuses[uid] = running(phase="Rendezvous", phaseReason="AgentCrashed", failures=[crash])

    def explained() -> Any:
        failures = objects.get("distributedtrainingjobs", "j")["status"].get("failures") or [{}]
        return failures[0].get("reason") == "OOMKilled" and failures[0]

    failure = wait_until("the failure has the kubelet's reason", explained, timeout=60)
    assert "memory limit of 2Gi" in failure["message"]
    assert failure["exitCode"] == 137
    wait_until("an event reports it", lambda: [e for e in objects.list("events") if e["reason"] == "OOMKilled"])
    assert objects.condition("j", "Restarting")["reason"] == "OOMKilled"


def test_start_without_a_scheduler_ends_at_its_deadline(
    start_operator: Callable[..., Operator], submit: Callable[..., Any], objects: Objects
) -> None:
    start_operator().ready()
    submit(startupDeadlineSeconds=5)
    failed = wait_until("the job fails", lambda: objects.condition("j", "Failed"), timeout=60)
    assert failed["reason"] == "StartupDeadlineExceeded"
    assert "pod j-0" in failed["message"]
    wait_until("its pods are deleted", lambda: objects.list("pods") == [], timeout=60)
