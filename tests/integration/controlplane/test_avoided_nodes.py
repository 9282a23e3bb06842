"""A node that keeps failing, on a real API server with the real StatefulSet controller.

The API server accepts the node affinity, and only the pods on that node are recreated.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.integration.controlplane.nodes import place
from tests.integration.controlplane.support import Agents, Objects, Operator, running, wait_until

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
GPU = {"key": "gpu", "operator": "In", "values": ["h200"]}
ZONE = {"key": "zone", "operator": "Exists"}


def test_pod_is_recreated_away_from_its_node_and_the_others_stay(
    start_operator: Callable[..., Operator],
    run_job: Callable[..., Any],
    objects: Objects,
    agents: Agents,
) -> None:
    operator = start_operator().ready()
    terms = [{"matchExpressions": [GPU]}, {"matchExpressions": [ZONE]}]
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    job = run_job(template={"spec": {"affinity": affinity, "containers": [{"name": "trainer"}]}})
    uid = job["metadata"]["uid"]
    healthy, suspect = place(objects, "j-0", "w0"), place(objects, "j-1", "w1")
    failures = [
        {
            "attempt": attempt, "rank": 1, "ordinal": 1, "pod": "j-1", "node": "w1", "reason": "WorkerFailed",
            "message": "CUDA error: uncorrectable ECC error", "time": time.time(),
        }
        for attempt in (1, 2, 3)
    ]  # fmt: skip
    agents.statuses[uid] = running(attempt=4, failures=failures)

    def replaced() -> Any:
        pod = objects.get("pods", "j-1")
        return pod and pod["metadata"]["uid"] != suspect and pod

    moved = wait_until("pod j-1 is recreated", replaced, timeout=60)
    excluded = [{"key": "metadata.name", "operator": "NotIn", "values": ["w1"]}]
    assert moved["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == [
        {"matchExpressions": [GPU], "matchFields": excluded},
        {"matchExpressions": [ZONE], "matchFields": excluded},
    ]
    assert moved["metadata"]["annotations"]["training.dtj.dev/avoided-nodes"] == "w1"
    (entry,) = objects.get("distributedtrainingjobs", "j")["status"]["avoidedNodes"]
    assert (entry["node"], entry["reason"], entry["failures"]) == ("w1", "WorkerFailed", 3)
    wait_until("an event reports it", lambda: [e for e in objects.list("events") if e["reason"] == "NodeAvoided"])
    agents.statuses[uid] = running(attempt=5, failures=failures)
    wait_until(
        "the next attempt runs", lambda: objects.get("distributedtrainingjobs", "j")["status"].get("attempt") == 5
    )
    assert objects.get("pods", "j-0")["metadata"]["uid"] == healthy, "the healthy pod is not touched"
    assert objects.get("pods", "j-1")["metadata"]["uid"] == moved["metadata"]["uid"], "the moved pod stays"
    writes = [(call["verb"], call["objectRef"]["resource"], call["objectRef"]["name"]) for call in operator.writes()]
    assert [write for write in writes if write[0] == "delete"] == [("delete", "pods", "j-1")]
    assert writes.count(("patch", "statefulsets", "j")) == 2, "created once, changed once"
