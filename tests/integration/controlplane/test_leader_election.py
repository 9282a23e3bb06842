"""Replicas of the operator on a real API server: one acts, and another takes over, however the first one ends."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dtj_contract import names
from dtj_operator import rbac
from dtj_operator.leader.claims import claim_name
from hack.cluster.controlplane import ControlPlane
from tests.integration.controlplane.kubelet import Kubelet
from tests.integration.controlplane.support import (
    CLAIMS,
    Agents,
    Objects,
    Operator,
    running,
    wait_until,
)
from tests.integration.controlplane.test_two_operators import made
from tests.lib.starvation import Starvation


def leads(operator: Operator) -> bool:
    return metric(operator, "dtj_leader") == 1


def metric(operator: Operator, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", operator.get("/metrics")[1], re.MULTILINE)
    assert found is not None
    return float(found[1])


Start = Callable[..., Operator]
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}"
QUICK = ("--lease-duration-seconds", "3", "--renew-deadline-seconds", "2", "--retry-period-seconds", "0.5")
ENDS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
ENDED = int(os.environ.get("DTJ_LEADER_ENDS", "8"))
"""Leaders that end, and jobs. `make test-long` takes 20."""
LATE = 60.0
"""The bound of a take-over on a busy machine. Without what that takes, the two below hold."""
AFTER_KILL, AFTER_TERM = 15.0, 1.0


def pair(replica: Start) -> tuple[Operator, Operator]:
    """Starts a leader and a standby."""
    first = replica("first")
    wait_until("the first one leads", lambda: leads(first))
    second = replica("second").ready()
    assert not leads(second)
    return first, second


def holder(objects: Objects, name: str = "dtj") -> str:
    lease = objects.plane.request("GET", LEASES.format(objects.namespace, name))
    return str(lease["spec"].get("holderIdentity", ""))


def has_pods(objects: Objects, *jobs: str) -> bool:
    return {pod["metadata"]["labels"][names.LABEL_JOB] for pod in objects.list("pods")} >= set(jobs)


def stored_writes(operator: Operator, since: float) -> list[str]:
    """Returns what this operator has changed after the Unix time `since`, from the API server's audit log."""
    return [
        f"{call['verb']} {call['requestURI']} {call['requestReceivedTimestamp']}"
        for call in operator.writes()
        if call["responseStatus"].get("code", 0) < 300 and call["requestReceivedTimestamp"] >= rfc3339(since)
    ]


def rfc3339(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1e6):06d}Z"


@pytest.mark.timeout(300)
def test_standby_acts_after_the_leader_was_killed_and_nothing_is_done_twice(
    replica: Start, submit: Callable[..., Any], objects: Objects
) -> None:
    first, second = pair(replica)
    submit("before")
    wait_until("the pods exist", lambda: has_pods(objects, "before"))
    assert second.writes() == []
    killed = time.monotonic()
    with Starvation() as starved:
        first.kill()
        submit("after")
        wait_until("the standby leads", lambda: leads(second), timeout=LATE)
    took = time.monotonic() - killed
    print(f"\ntaken over {took:.1f} s after SIGKILL, {starved.seconds:.1f} s of them starved")
    assert took - starved.seconds <= AFTER_KILL
    wait_until("the pods exist", lambda: has_pods(objects, "before", "after"))
    assert (made(objects, "statefulsets"), made(objects, "pods")) == (2, 4)
    assert objects.plane.request("GET", LEASES.format(objects.namespace, "dtj"))["spec"]["leaseTransitions"] == 1


@pytest.mark.timeout(300)
def test_terminated_leader_releases_the_lease_and_the_standby_takes_it_at_once(
    replica: Start, submit: Callable[..., Any], objects: Objects
) -> None:
    first, second = pair(replica)
    began = time.monotonic()
    with Starvation() as starved:
        first.process.send_signal(signal.SIGTERM)
        wait_until("the standby leads", lambda: leads(second), timeout=LATE)
    took = time.monotonic() - began
    print(f"\ntaken over {took:.2f} s after SIGTERM, {starved.seconds:.2f} s of them starved")
    assert took - starved.seconds <= AFTER_TERM
    assert first.process.wait(60) == 0
    assert [line for line in first.lines() if "released the lease" in line["message"]]
    submit()
    wait_until("the pods exist", lambda: has_pods(objects, "j"))
    assert second.terminate() == 0
    assert holder(objects) == "", "the last one leaves a lease that the next one takes at once"


@pytest.mark.timeout(300)
def test_leader_that_was_stopped_writes_nothing_when_it_continues(
    replica: Start, submit: Callable[..., Any], objects: Objects
) -> None:
    first, second = pair(replica)
    jobs = [f"j{number}" for number in range(12)]
    for name in jobs:
        submit(name)
    wait_until("the leader is at work", lambda: objects.list("statefulsets"))
    first.process.send_signal(signal.SIGSTOP)
    try:
        wait_until("the standby leads", lambda: leads(second), timeout=LATE)
        wait_until("the pods exist", lambda: has_pods(objects, *jobs), timeout=LATE)
        continued = time.time()
    finally:
        first.process.send_signal(signal.SIGCONT)
    wait_until("the old leader is a standby", lambda: not leads(first))
    wait_until("it is ready", lambda: first.get("/readyz")[0] == 200)
    submit("more")
    wait_until("the pods exist", lambda: has_pods(objects, "more"))
    assert stored_writes(first, continued) == []
    assert made(objects, "statefulsets") == 13
    assert made(objects, "pods") == 26
    assert leads(second)
    assert holder(objects) != ""


@pytest.mark.timeout(300)
def test_new_leader_whose_watches_are_late_takes_no_pod_for_lost(
    replica: Start, run_job: Callable[..., Any], objects: Objects, kubelet: Kubelet, agents: Agents
) -> None:
    def status() -> Any:
        return objects.get(names.PLURAL, "j")["status"]

    for pod in ("j-0", "j-1"):  # an agent may report before the kubelet does
        kubelet.container_states[pod] = {"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "ready": False}

    first = replica("first")
    wait_until("the first one leads", lambda: leads(first))
    second = replica("second", program=(str(Path(__file__).with_name("late_watches.py")),)).ready()
    uid = run_job()["metadata"]["uid"]
    first.kill()
    wait_until("the standby leads", lambda: leads(second), timeout=LATE)
    agents.statuses[uid] = running(step=8)
    wait_until("it reports the next step", lambda: status()["progress"]["step"] == 8)
    assert objects.condition("j", "Running")
    assert [each for each in status()["conditions"] if each["type"] == names.RESTARTING] == []
    assert (made(objects, "statefulsets"), made(objects, "pods")) == (1, 2)


@pytest.mark.timeout(600)
def test_leaders_that_end_at_random_lose_and_double_nothing(
    replica: Start, submit: Callable[..., Any], objects: Objects, kubelet: Kubelet, agents: Agents
) -> None:
    seed = random.randrange(1 << 32)
    print(f"\nseed {seed}")
    chance, pause = random.Random(seed), threading.Event()
    pair = {account: replica(account, "dtj", *QUICK) for account in ("first", "second")}

    def leader() -> str | None:
        return next((name for name, each in pair.items() if leads(each)), None)

    jobs = [f"j{number}" for number in range(ENDED)]
    for name in jobs:
        account = wait_until("one leads", leader)
        job = submit(name)
        agents.statuses[job["metadata"]["uid"]] = running(step=7)
        pause.wait(chance.uniform(0, 1))
        ended, process = chance.choice(ENDS), pair[account].process
        process.send_signal(ended)
        if ended is signal.SIGSTOP:
            (other,) = pair.keys() - {account}
            wait_until("the other one leads", lambda other=other: leads(pair[other]), timeout=LATE)
            process.send_signal(signal.SIGCONT)
            wait_until("the old leader is a standby", lambda account=account: not leads(pair[account]))
        else:
            process.wait(60)
            pair[account] = replica(account, "dtj", *QUICK)
    for name in jobs:
        wait_until(f"job {name} runs", lambda name=name: objects.condition(name, "Running"))
    kinds = ("statefulsets", "pods", "services", "secrets")
    assert [made(objects, kind) for kind in kinds] == [ENDED, 2 * ENDED, ENDED, ENDED]
    statuses = [job["status"] for job in objects.list(names.PLURAL)]
    assert [(s["attempt"], s["restarts"]["total"], s["progress"]["step"]) for s in statuses] == [(1, 0, 7)] * ENDED
    ours = [e for e in objects.list("events") if e["reportingController"].startswith(names.GROUP)]
    recorded = Counter((e["regarding"]["name"], e["reason"]) for e in ours)
    assert max(recorded.values(), default=0) <= 1, recorded


@pytest.mark.timeout(300)
def test_later_of_two_installations_of_a_namespace_waits_for_the_end_of_the_first(
    replica: Start, submit: Callable[..., Any], objects: Objects
) -> None:
    program = (str(Path(__file__).with_name("short_claims.py")),)
    first = replica("first", "one", program=program)
    wait_until("the first one leads", lambda: leads(first))
    second = replica("second", "two", program=program).ready()
    name = f"{objects.namespace}/one"
    warned = wait_until(
        "the second one reports the overlap",
        lambda: [line for line in second.lines() if name in line["message"] and line["level"] == "error"],
    )
    assert "Uninstall all but one" in warned[0]["message"]
    wait_until("both count it", lambda: [metric(o, "dtj_overlapping_installations") for o in (first, second)] == [1, 1])
    submit("before")
    wait_until("the pods exist", lambda: has_pods(objects, "before"))
    assert [call for call in second.writes() if call["objectRef"]["resource"] != "leases"] == []
    assert not leads(second)
    first.kill()
    wait_until("the second one leads", lambda: leads(second), timeout=LATE)
    wait_until("and counts none", lambda: metric(second, "dtj_overlapping_installations") == 0)
    submit("after")
    wait_until("the pods exist", lambda: has_pods(objects, "before", "after"))


@pytest.mark.timeout(300)
def test_election_uses_exactly_the_rights_of_its_table(replica: Start, objects: Objects, plane: ControlPlane) -> None:
    first, second = pair(replica)
    wait_until("the claim is renewed", lambda: any(c["verb"] == "update" for c in leases_of(first, CLAIMS)))
    first.terminate()
    wait_until("the standby leads", lambda: leads(second), timeout=LATE)
    used = {call["verb"] for operator in (first, second) for call in leases_of(operator, objects.namespace)}
    assert used == set(rbac.ELECTION_RULES["coordination.k8s.io", "leases"])
    claims = {call["verb"] for operator in (first, second) for call in leases_of(operator, CLAIMS)}
    assert claims == {"get", "list", "create", "update"}
    refused = [c for o in (first, second) for c in o.calls() if c["responseStatus"].get("code") == 403]
    assert refused == []
    own = claim_name(f"{objects.namespace}/dtj")
    assert [may_get_lease(plane, objects.namespace, name) for name in (own, "another")] == [True, False]


def may_get_lease(plane: ControlPlane, namespace: str, name: str) -> bool:
    """Returns whether the first replica's account may read this claim."""
    lease = {"namespace": CLAIMS, "verb": "get", "group": "coordination.k8s.io", "resource": "leases", "name": name}
    spec = {"user": f"system:serviceaccount:{namespace}:first", "resourceAttributes": lease}
    review = plane.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
    return bool(review["status"]["allowed"])


def leases_of(operator: Operator, namespace: str) -> list[dict[str, Any]]:
    return [
        call
        for call in operator.calls()
        if call["objectRef"]["resource"] == "leases" and call["objectRef"].get("namespace") == namespace
    ]
