"""Failures around the operator: a crash, an unavailable API server, missing rights."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dtj_contract import names
from dtj_operator import rbac
from hack.cluster import gobuild
from hack.cluster.controlplane import ControlPlane
from hack.cluster.versions import CONTROL_PLANE
from tests.integration.controlplane.conftest import install_crds
from tests.integration.controlplane.kubelet import Kubelet
from tests.integration.controlplane.support import (
    SERVICE_ACCOUNT,
    Agents,
    Objects,
    Operator,
    change,
    grant,
    outcome,
    running,
    wait_until,
)

Start = Callable[..., Operator]
JOBS = names.PLURAL
HERE = Path(__file__).parent


def crash_after_each_write(start: Start, journal: Path, over: Callable[[], Any], *, most: int = 15) -> int:
    """Runs operators one after the other, each killed after its first new write, until `over` holds.

    Returns the number of operators.
    """
    for number in range(most):
        operator = start(program=(str(HERE / "crashing.py"), str(journal)))
        wait_until("killed or done", lambda operator=operator: operator.process.poll() is not None or over())
        try:
            # The operator may be about to end: its last write shows before its end.
            operator.process.wait(3)
        except subprocess.TimeoutExpired:
            operator.kill()
            return number
        assert operator.process.returncode == -signal.SIGKILL, operator.log.read_text()
    raise AssertionError(f"not done after {most} crashes")


@pytest.mark.timeout(240)
def test_operator_killed_after_each_write_repeats_nothing_and_ends_the_same(
    start_operator: Start,
    submit: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
    tmp_path: Path,
) -> None:
    journal = tmp_path / "journal"
    job = submit()
    agents.statuses[job["metadata"]["uid"]] = running(step=7)
    first: dict[str, str] = {}

    def children() -> dict[str, str]:
        found = {"secret": objects.get("secrets", "j-dtj-agent"), "service": objects.get("services", "j")}
        found["set"] = objects.get("statefulsets", "j")
        uids = {kind: child["metadata"]["uid"] for kind, child in found.items() if child}
        for kind, uid in uids.items():
            assert first.setdefault(kind, uid) == uid, f"the {kind} was created twice"
        return uids

    def runs() -> bool:
        children()
        return bool(objects.condition("j", "Running"))

    crashes = crash_after_each_write(start_operator, journal, runs)
    assert len(children()) == 3
    assert objects.get("statefulsets", "j")["metadata"]["generation"] == 1, "another apply changes nothing"
    pods = {pod["metadata"]["uid"] for pod in objects.list("pods")}
    assert len(pods) == 2
    kubelet.container_states["j-0"] = outcome(job, "Succeeded", "AllWorkersSucceeded")
    over = lambda: objects.condition("j", "Complete") and not objects.get("statefulsets", "j")  # noqa: E731
    ended = crash_after_each_write(start_operator, journal, over)
    print(f"{crashes} crashes until it ran, {ended} until it was over, after:\n{journal.read_text()}")
    written = [line.split()[:2] for line in journal.read_text().splitlines()]
    # The Secret comes twice: the next operator can't create it, and applies it.
    assert list(dict.fromkeys(what for _, what in written))[:3] == ["secrets", "services", "statefulsets"]
    assert ["delete", "statefulsets"] in written
    assert sum(what == f"{JOBS}/status" for _, what in written) >= 2
    status = objects.get(JOBS, "j")["status"]
    assert (status["phase"], status["attempt"], status["progress"]["step"]) == ("Complete", 1, 7)
    assert status["restarts"]["total"] == 0
    assert status["startTime"] <= status["completionTime"]
    reasons = [event["reason"] for event in objects.list("events") if event["regarding"]["kind"] == names.KIND]
    assert len(reasons) == len(set(reasons)), reasons


def test_operator_waits_for_a_crashed_api_server_and_catches_up(
    plane: ControlPlane,
    start_operator: Start,
    submit: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
) -> None:
    operator = start_operator().ready()
    job = submit()
    agents.statuses[job["metadata"]["uid"]] = running()
    wait_until("the job runs", lambda: objects.condition("j", "Running"))
    plane.crash_apiserver()
    try:
        wait_until(
            "the operator logs the failure",
            lambda: "will retry" in operator.log.read_text() or "retrying in" in operator.log.read_text(),
        )
        assert operator.get("/healthz")[0] == 200, "a restart would not bring the API server back"
    finally:
        plane.start_apiserver()
    kubelet.container_states["j-0"] = outcome(job, "Failed", "RestartBudgetSpent")
    failed = wait_until("its end is observed", lambda: objects.condition("j", "Failed"), timeout=60)
    assert failed["reason"] == "RestartBudgetSpent"
    submit("k")
    wait_until("a new job gets its pods", lambda: len(objects.list("pods")) == 2, timeout=60)
    assert operator.process.poll() is None


def test_sigterm_lets_the_running_reconcile_finish_and_exits_0(
    start_operator: Start, submit: Callable[..., Any], objects: Objects
) -> None:
    operator = start_operator().ready()
    for number in range(20):
        submit(f"j{number}")
    wait_until("the operator works", lambda: objects.list("statefulsets"))
    began = time.monotonic()
    assert operator.terminate() == 0
    print(f"ended in {time.monotonic() - began:.1f} s")
    assert time.monotonic() - began < 40
    for stateful_set in objects.list("statefulsets"):
        status = objects.get(JOBS, stateful_set["metadata"]["name"]).get("status", {})
        assert status.get("phase") == "Pending", "no job stays between its children and its status"


def test_rbac_rights_are_exactly_the_used_ones(
    start_operator: Start, submit: Callable[..., Any], objects: Objects, kubelet: Kubelet, agents: Agents
) -> None:
    operator = start_operator("--resync-seconds", "2", "--job-network-policy-from", "[]").ready()
    jobs = submit("kept"), submit("brief", ttlSecondsAfterFinished=1)  # its StatefulSet may be deleted with it
    for job in jobs:
        name = job["metadata"]["name"]
        agents.statuses[job["metadata"]["uid"]] = running()
        wait_until("the job runs", partial(objects.condition, name, "Running"))
        kubelet.container_states[f"{name}-0"] = outcome(job, "Succeeded", "AllWorkersSucceeded")
    wait_until("its StatefulSet is gone", lambda: objects.get("statefulsets", "kept") is None)
    wait_until("the job is gone", lambda: objects.get(JOBS, "brief") is None)
    submit("twice")
    wait_until("its StatefulSet exists", lambda: objects.get("statefulsets", "twice"))
    used: dict[tuple[str, str], set[str]] = {}
    for call in operator.calls():
        ref = call["objectRef"]
        assert call["responseStatus"]["code"] not in (401, 403), call
        if "resource" not in ref:
            continue
        resource = ref["resource"] + (f"/{ref['subresource']}" if "subresource" in ref else "")
        verbs = used.setdefault((ref.get("apiGroup", ""), resource), set())
        verbs.add(call["verb"])
        # RBAC requires create where an apply creates the object.
        if call["verb"] == "patch" and call["responseStatus"]["code"] == 201:
            verbs.add("create")
    granted = {key: set(verbs) for key, verbs in (rbac.RULES | rbac.RUNTIME_RULES).items()}
    granted["events.k8s.io", "events"] -= {"patch"}  # for a repeated event
    del granted["", "persistentvolumeclaims"]  # for a claimTemplate
    granted["", "pods"] -= {"delete"}  # for a node that is dead for half a minute
    for child in (("apps", "statefulsets"), ("", "services")):
        granted[child] -= {"get"}  # for an object of somebody else that has the name
    for child in (("", "secrets"), ("networking.k8s.io", "networkpolicies")):
        granted[child] -= {"patch"}  # for one of an earlier run
    assert used == granted


def test_missing_right_is_reported_and_recovers_once_granted(
    plane: ControlPlane, start_operator: Start, submit: Callable[..., Any], objects: Objects
) -> None:
    where = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{objects.namespace}/roles/{SERVICE_ACCOUNT}"
    whole = plane.request("GET", where)["rules"]
    change(plane, where, lambda role: role.update(rules=[rule for rule in whole if rule["resources"] != ["services"]]))
    operator = start_operator()
    submit()
    warnings = wait_until(
        "the log says which right",
        lambda: [line for line in operator.lines() if "cannot" in line["message"] and '"services"' in line["message"]],
    )
    assert warnings[0]["level"] == "warning"
    assert not objects.condition("j", "Failed"), "the installation is wrong, not the job"
    assert operator.get("/readyz")[0] == 503, "no job is planned from a part of what there is"
    change(plane, where, lambda role: role.update(rules=whole))
    wait_until("the pods exist", lambda: len(objects.list("pods")) == 2, timeout=60)


def test_expired_login_is_read_again_by_client_and_watches(
    plane: ControlPlane, start_operator: Start, submit: Callable[..., Any], objects: Objects
) -> None:
    """The old token is revoked, and the file has another, as when the kubelet renews a token on disk."""
    operator = start_operator().ready()
    account = f"/api/v1/namespaces/{objects.namespace}/serviceaccounts"
    plane.request("DELETE", f"{account}/{SERVICE_ACCOUNT}")
    plane.request("POST", account, {"metadata": {"name": SERVICE_ACCOUNT}})
    plane.kubeconfig_for_service_account(objects.namespace, SERVICE_ACCOUNT).replace(operator.kubeconfig)
    # The restart ends the watches and clears the API server's cache of checked tokens.
    plane.crash_apiserver()
    plane.start_apiserver()
    submit()
    wait_until("the pods exist", lambda: len(objects.list("pods")) == 2, timeout=60)
    assert [call for call in plane.audit_events() if call["responseStatus"]["code"] == 401], (
        "the old token was rejected"
    )
    assert operator.process.poll() is None


def test_operator_waits_for_the_crd_and_ends_when_it_is_deleted(tmp_path: Path) -> None:
    """The operator serves the whole cluster with a ClusterRole.

    The API server is the test's own, because its CRD is deleted.
    """
    with ControlPlane(gobuild.bin_folder(CONTROL_PLANE), tmp_path / "plane") as plane:
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": "home"}})
        grant(plane, "home")
        base = "/apis/rbac.authorization.k8s.io/v1"
        plane.request("POST", f"{base}/clusterroles", {"metadata": {"name": "dtj"}, "rules": rbac.rules()})
        binding = {
            "metadata": {"name": "dtj"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "dtj"},
            "subjects": [{"kind": "ServiceAccount", "name": SERVICE_ACCOUNT, "namespace": "home"}],
        }
        plane.request("POST", f"{base}/clusterrolebindings", binding)
        impatient = Operator(plane, "home", tmp_path / "impatient.log", ("--crd-wait-seconds", "1"), served="")
        try:
            assert impatient.process.wait(30) == 1
        finally:
            impatient.kill()
        assert "install the CRD" in impatient.lines()[-1]["message"]

        operator = Operator(plane, "home", tmp_path / "operator.log", served="")
        try:
            assert wait_until("the operator is up", lambda: operator.get("/readyz"))[0] == 503
            install_crds(plane)
            operator.ready()
            plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": "away"}})
            objects = Objects(plane, "away")
            spec = {"replicas": 1, "image": "i", "entrypoint": {"module": "m"}}
            job = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "j"}, "spec": spec}
            plane.request("POST", objects.path(JOBS), job)
            wait_until("a job in any namespace is served", lambda: objects.get("statefulsets", "j"))
            crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            plane.request("DELETE", f"{crds}/{names.PLURAL}.{names.GROUP}")
            assert operator.process.wait(60) == 1
            print(operator.lines()[-1]["message"])
        finally:
            operator.kill()
        operator.check_log()


def test_wrong_flags_exit_with_2_and_name_the_flag(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "dtj_operator.app",
        "--agent-image",
        "i",
        "--master-key-file",
        str(tmp_path / "no"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "--master-key-file" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.timeout(300)
def test_hundred_running_jobs_cost_little_while_nothing_happens(
    start_operator: Start, submit: Callable[..., Any], objects: Objects, kubelet: Kubelet, agents: Agents
) -> None:
    agents.patience = 60.0
    operator = start_operator().ready()
    for number in range(100):
        agents.statuses[submit(f"j{number:03}", replicas=1)["metadata"]["uid"]] = running()
    phases = lambda: {job.get("status", {}).get("phase") for job in objects.list(JOBS)}  # noqa: E731
    wait_until("all run", lambda: phases() == {"Running"}, timeout=120)
    before, cpu, asked = len(operator.calls()), operator.cpu_seconds(), agents.asked
    time.sleep(10)  # observes that nothing happens
    calls = operator.calls()[before:]
    reads = sum(call["verb"] in ("get", "list") for call in calls)
    print(
        f"100 running jobs, 10 s: CPU {operator.cpu_seconds() - cpu:.1f} s, {agents.asked - asked} requests to agents, "
        f"{reads} reads, "
        f"{len(calls) - reads} other calls, RSS {operator.rss_mib():.0f} MiB"
    )
    assert agents.asked - asked <= 150, "each job's agent once in 26 s"
    assert not [call for call in calls if call["verb"] not in ("get", "list", "watch")]
    assert reads == 0


@pytest.mark.timeout(300)
def test_hundred_jobs_at_once_all_start(start_operator: Start, submit: Callable[..., Any], objects: Objects) -> None:
    operator = start_operator().ready()
    idle, cpu = operator.rss_mib(), operator.cpu_seconds()
    began = time.monotonic()
    for number in range(100):
        submit(f"j{number:03}")
    created = time.monotonic() - began
    wait_until("all have a status", lambda: all(job.get("status") for job in objects.list(JOBS)), timeout=120)
    took = time.monotonic() - began
    assert len(objects.list("statefulsets")) == 100
    before = len(operator.writes())
    wait_until("all pods are created", lambda: len(objects.list("pods")) == 200, timeout=120)
    print(
        f"100 jobs: created in {created:.1f} s, own children and status after {took:.1f} s, pods after "
        f"{time.monotonic() - began:.1f} s; writes {len(operator.writes())} ({before} by then), "
        f"calls {len(operator.calls())}; "
        f"RSS {idle:.0f} -> {operator.rss_mib():.0f} MiB, CPU {operator.cpu_seconds() - cpu:.1f} s"
    )
    assert took < 120
