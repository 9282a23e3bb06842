"""Jobs under their NetworkPolicy, on a network that enforces policies.

The network of hack/cluster enforces none until `python3 -m hack.cluster policies on`, so a control
comes first. `make test-policies` fails where `make test` skips.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj_contract import names
from tests.e2e.conftest import DIGITS_ARGS, drop_namespace, job_factory, make_namespace
from tests.e2e.kit import Job, Kubectl, Object, wait_until
from tests.e2e.test_recovery import KILL_WORKER, kill_operator
from tests.integration.chart.kit import ROOT, of_kind, render

REQUIRED = "DTJ_POLICIES_REQUIRED"
"""Set by `make test-policies`: a network that enforces no policies is a failure."""
PAGE = ROOT / "docs/security.md"
PORT = 8000
# Prints which of the places answer. A policy may drop a packet or reject it, as a closed port does.
TRY = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def answers(place):
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=3).close()
        return True
    except OSError:
        return False
with ThreadPoolExecutor(32) as pool:
    print(json.dumps(dict(zip(sys.argv[1:], pool.map(answers, sys.argv[1:])))))
"""
# Prints the ports on which this pod listens for others: state 0A is LISTEN, and loopback is nobody else's.
LISTENING = """
rows = [line.split() for name in ("tcp", "tcp6") for line in list(open(f"/proc/net/{name}"))[1:]]
print(*{int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and not row[1].startswith("0100007F")})
"""
SCRAPE = """
import sys, urllib.request
print(urllib.request.urlopen(f"http://{sys.argv[1]}/metrics", timeout=5).read().decode())
"""
IDLE = ("python3", "-c", "import signal; signal.pause()")
SCRAPER = {"app.kubernetes.io/name": "prometheus"}


def training(epochs: int, step_ms: int) -> Object:
    """Returns the entrypoint of the suite's job with other numbers. An epoch has 60 steps."""
    other = {"--epochs": str(epochs), "--step-time-ms": str(step_ms)}
    args = [other.get(before, arg) for before, arg in itertools.pairwise(["", *DIGITS_ARGS])]
    return {"module": "dtj_trainer.examples.digits", "args": args}


# Slow enough that a busy machine is done with its questions before the job is.
SLOW = training(epochs=1, step_ms=300)


def plain_pod(name: str, image: str, labels: dict[str, str], *command: str) -> Object:
    restricted = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {"name": "c", "image": image, "command": list(command), "securityContext": restricted}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def policy(name: str, spec: Object) -> Object:
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}, "spec": spec}


def page_policies() -> list[Object]:
    """Returns the policies that docs/security.md recommends."""
    return [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)]


@dataclass
class Caller:
    """A running pod that tries to connect."""

    kubectl: Kubectl
    pod: str
    address: str = ""

    def python(self, code: str, *arguments: str) -> str:
        return self.kubectl("exec", self.pod, "--", "python3", "-c", code, *arguments)

    def reached(self, places: list[str]) -> dict[str, bool]:
        """Returns for each `host:port` whether it answers."""
        found: dict[str, bool] = json.loads(self.python(TRY, *places))
        return found


def start(kubectl: Kubectl, name: str, image: str, labels: dict[str, str], *command: str) -> Caller:
    # A new namespace admits pods when its account is there; a job's pods are tried again by their controller.
    wait_until("the account of the pods", lambda: kubectl.get("serviceaccount", "default"))
    kubectl.apply(plain_pod(name, image, labels, *(command or IDLE)))

    def running() -> str:
        status = (kubectl.get("pod", name) or {}).get("status", {})
        return status.get("podIP", "") if status.get("phase") == "Running" else ""

    return Caller(kubectl, name, wait_until(f"pod {name} runs", running, timeout=120))


@pytest.fixture(scope="module")
def elsewhere(cluster: dict[str, str], shared_root: Path) -> Iterator[Kubectl]:
    """Returns a namespace that has no jobs."""
    kubectl = make_namespace(f"strangers-{uuid.uuid4().hex[:4]}", shared_root)
    yield kubectl
    drop_namespace(kubectl, shared_root)


@pytest.fixture(scope="module")
def stranger(elsewhere: Kubectl, images: dict[str, str]) -> Caller:
    return start(elsewhere, "stranger", images["trainer"], {})


@pytest.fixture(scope="module", autouse=True)
def enforced(elsewhere: Kubectl, stranger: Caller, images: dict[str, str]) -> None:
    """Skips the tests where the network lets a stranger pass a policy that admits nobody."""
    labels = {"dtj-e2e": "closed"}
    closed = start(elsewhere, "closed", images["trainer"], labels, "python3", "-m", "http.server", str(PORT))
    place = f"{closed.address}:{PORT}"
    wait_until("the control's port is open", lambda: stranger.reached([place])[place], timeout=60)
    elsewhere.apply(policy("closed", {"podSelector": {"matchLabels": labels}, "policyTypes": ["Ingress"]}))
    try:
        wait_until("the control's port is closed", lambda: not stranger.reached([place])[place], timeout=30)
    except AssertionError:
        if os.environ.get(REQUIRED):
            raise
        pytest.skip("this cluster enforces no NetworkPolicy (python3 -m hack.cluster policies on)")


@pytest.fixture(scope="module")
def walled(enforced: None, shared_root: Path, images: dict[str, str]) -> Iterator[Job]:
    """Returns a job of two pods that trains for as long as these tests ask questions."""
    kubectl = make_namespace(f"walled-{uuid.uuid4().hex[:4]}", shared_root)
    long = training(epochs=4, step_ms=1500)
    job = job_factory(kubectl, shared_root, images)("walled", replicas=2, entrypoint=long).create()
    job.until_step(1)
    yield job
    drop_namespace(kubectl, shared_root)


@pytest.fixture
def neighbour(kubectl: Kubectl, images: dict[str, str]) -> Caller:
    """Returns a pod in the namespace of the test's job."""
    return start(kubectl, "neighbour", images["trainer"], {})


def listening(job: Job) -> list[str]:
    """Returns where the job's pods listen."""
    found = []
    for name, pod in job.pods().items():
        ports = job.kubectl("exec", name, "-c", "trainer", "--", "python3", "-c", LISTENING).split()
        found += [f"{pod['status']['podIP']}:{port}" for port in ports]
    return sorted(found)


def agents(job: Job) -> list[str]:
    return [f"{pod['status']['podIP']}:{names.AGENT_PORT}" for pod in job.pods().values()]


def status_step(job: Job) -> int:
    return int(job.get().get("status", {}).get("progress", {}).get("step") or 0)


def until_status_moves(job: Job, what: str) -> None:
    """Waits until the operator has read a later step than the status has, which it can't compute."""
    step = wait_until("a step in the status", lambda: status_step(job))
    wait_until(what, lambda: status_step(job) > step, timeout=120)


def undisturbed(status: Any) -> bool:
    return bool(status["attempt"] == 1 and status["restarts"]["total"] == 0)


def test_job_completes_while_strangers_reach_none_of_its_ports(
    make_job: Callable[..., Job], stranger: Caller, neighbour: Caller
) -> None:
    job = make_job(replicas=2, entrypoint=SLOW).create()
    job.until_step(1)
    places = listening(job)
    assert set(agents(job)) < set(places), "the rendezvous and gloo listen, too"
    own = Caller(job.kubectl, "digits-1").reached(places)
    assert set(own.values()) == {True}, own
    for caller in (stranger, neighbour):
        tried = caller.reached(places)
        assert set(tried.values()) == {False}, (caller.pod, tried)
    assert set(places) <= set(listening(job)), "they listened all the time"
    status = job.wait("Complete", 240)["status"]
    assert undisturbed(status), status


def test_operator_reads_the_status_and_its_successor_does(walled: Job, operator: Kubectl) -> None:
    until_status_moves(walled, "the status moves")
    kill_operator(operator)
    until_status_moves(walled, "the status moves under an operator of another address")
    assert undisturbed(walled.get()["status"])


def test_scraper_with_the_charts_label_reaches_the_agents_port_alone(
    walled: Job, elsewhere: Kubectl, images: dict[str, str]
) -> None:
    scraper = start(elsewhere, "scraper", images["trainer"], SCRAPER)
    places, scraped = listening(walled), agents(walled)
    assert len(scraped) == 2
    assert set(scraped) < set(places)
    wait_until("the scraper is admitted", lambda: all(scraper.reached(scraped).values()), timeout=60)
    tried = scraper.reached(places)
    assert tried == {place: place in scraped for place in places}
    assert all("dtj_" in scraper.python(SCRAPE, place) for place in scraped)


@pytest.mark.parametrize("ordinal", [1, 0])
def test_deleted_pod_comes_back_under_another_address_and_the_group_forms_again(
    make_job: Callable[..., Job], ordinal: int
) -> None:
    job = make_job(entrypoint=SLOW).create()
    job.until_step(20)
    name = f"digits-{ordinal}"
    before = job.pods()[name]["status"]["podIP"]
    job.kubectl("delete", "pod", name, "--wait=false", "--grace-period=1")
    job.until_step(30, attempt=2)
    after = job.pods()[name]["status"]["podIP"]
    assert after != before
    status = job.wait("Complete", 240)["status"]
    assert status["restarts"] == {"total": 1, "inPlace": 0, "pod": 1, "counted": 0}, status
    assert status["attempt"] == 2, "the first group after the return forms"


def test_killed_worker_is_restarted_in_place(make_job: Callable[..., Job]) -> None:
    job = make_job(entrypoint=SLOW).create()
    job.until_step(20)
    job.kubectl("exec", "digits-1", "-c", "trainer", "--", "python3", "-c", KILL_WORKER)
    status = job.wait("Complete", 240)["status"]
    assert status["restarts"] == {"total": 1, "inPlace": 1, "pod": 0, "counted": 1}


def test_namespace_that_denies_all_by_default_needs_the_egress_of_the_docs(
    make_job: Callable[..., Job], kubectl: Kubectl
) -> None:
    [egress] = [p for p in page_policies() if p["spec"]["policyTypes"] == ["Egress"]]
    kubectl.apply(policy("default-deny", {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}), egress)
    status = make_job(replicas=2, entrypoint=SLOW).create().wait("Complete", 240)["status"]
    assert undisturbed(status), status


def test_operators_own_policy_admits_scrapers_and_the_kubelet_alone(
    operator: Kubectl, elsewhere: Kubectl, stranger: Caller, images: dict[str, str]
) -> None:
    scraper = start(elsewhere, "metrics", images["trainer"], SCRAPER)
    peer = {"namespaceSelector": {}, "podSelector": {"matchLabels": SCRAPER}}
    rendered = render({"networkPolicy.enabled": True, "networkPolicy.ingressFrom": [peer]})
    [own] = of_kind(rendered, "NetworkPolicy")
    operator.apply(own)
    try:
        # Probes of pods that start under the policy: the Deployment has its replicas only if they pass.
        kill_operator(operator)
        operator("rollout", "status", "deployment", "-l", "app.kubernetes.io/name=dtj-operator", "--timeout=55s")
        pods = operator.list("pods", "app.kubernetes.io/name=dtj-operator")
        places = [f"{pod['status']['podIP']}:8080" for pod in pods if "podIP" in pod["status"]]
        wait_until("scrapers are admitted", lambda: set(scraper.reached(places).values()) == {True}, timeout=60)
        wait_until("strangers are not", lambda: set(stranger.reached(places).values()) == {False}, timeout=60)
    finally:
        operator("delete", "networkpolicy", own["metadata"]["name"])
