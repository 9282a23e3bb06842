"""A job's life on a real API server, with the operator as a process.

The tests check its children, the number of writes, and its end.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dtj_contract import names
from tests.integration.controlplane.kubelet import Kubelet
from tests.integration.controlplane.support import (
    Agents,
    Objects,
    Operator,
    change,
    outcome,
    running,
    wait_until,
)

Start = Callable[..., Operator]
JOBS = names.PLURAL


def kinds(calls: list[Any]) -> Counter[str]:
    """Returns the audit events as counts of `verb resource/subresource`."""
    refs = [(call["verb"], call["objectRef"]) for call in calls]
    return Counter(
        f"{verb} {ref['resource']}" + (f"/{ref['subresource']}" if "subresource" in ref else "") for verb, ref in refs
    )


def story(objects: Objects) -> list[str]:
    """Returns the reasons of the operator's events in the order of kubectl describe, each as often as recorded."""
    ours = [event for event in objects.list("events") if event["reportingController"].startswith(names.GROUP)]
    return [event["reason"] for event in ours for _ in range((event.get("series") or {}).get("count", 1))]


def test_job_gets_its_children_and_completes_with_every_write_counted(
    start_operator: Start, submit: Callable[..., Any], objects: Objects, kubelet: Kubelet, agents: Agents
) -> None:
    operator = start_operator().ready()
    ready_after = time.monotonic() - operator.started
    idle = operator.rss_mib()
    job = submit()
    agents.statuses[job["metadata"]["uid"]] = running(step=5)
    wait_until("the job runs", lambda: objects.condition("j", "Running"))
    wait_until("an event states its start", lambda: "WorkersRunning" in story(objects))
    for plural, name in (("statefulsets", "j"), ("services", "j"), ("secrets", "j-dtj-agent")):
        metadata = objects.get(plural, name)["metadata"]
        owner = metadata["ownerReferences"]
        assert [(o["uid"], o["controller"], o["blockOwnerDeletion"]) for o in owner] == [
            # A later job of this name could not become a second controller of a Secret that still exists.
            (job["metadata"]["uid"], plural != "secrets", False)
        ]
        assert "finalizers" not in metadata
        allowed = {names.ANNOTATION_SPEC_HASH, names.ANNOTATION_AGENT_IMAGE, names.ANNOTATION_AGENT_KEY}
        assert set(metadata.get("annotations", {})) <= allowed
    assert all("annotations" not in pod["metadata"] for pod in objects.list("pods"))
    stored = objects.get(JOBS, "j")
    assert "finalizers" not in stored["metadata"]
    assert "annotations" not in stored["metadata"]
    assert stored["status"]["progress"]["step"] == 5
    assert agents.refused == 0
    start = kinds(operator.writes())
    memory = f"RSS idle {idle:.0f} MiB, with a job {operator.rss_mib():.0f} MiB"
    print(f"ready in {ready_after:.1f} s; {memory}; writes: {dict(start)}")
    made = {"create secrets": 1, "patch services": 1, "patch statefulsets": 1}
    assert {key: start[key] for key in made} == made
    assert start[f"patch {JOBS}/status"] <= 3, "created, pods running, group running"
    assert story(objects) == ["WorkersRunning"], "a start without problems has one event"

    before, asked = len(operator.calls()), agents.asked
    time.sleep(8)  # observes that nothing happens
    quiet = operator.calls()[before:]
    print(f"8 s without news: {dict(kinds(quiet))}, {agents.asked - asked} questions to the agent")
    assert not quiet, "no writes, and nothing is read at a poll"
    assert agents.asked - asked >= 3

    kubelet.container_states["j-0"] = outcome(job, "Succeeded", "AllWorkersSucceeded")
    done = wait_until("the job is complete", lambda: objects.condition("j", "Complete"))
    assert done["reason"] == "AllWorkersSucceeded"
    wait_until("its pods are gone", lambda: not objects.list("pods"))
    assert objects.get("services", "j"), "what costs nothing is deleted with the job"
    end = kinds(operator.writes()) - start
    print(f"writes of its end: {dict(end)}")
    assert end[f"patch {JOBS}/status"] <= 2
    assert end["delete statefulsets"] == 1
    assert story(objects) == ["WorkersRunning", "AllWorkersSucceeded"], "kubectl describe shows how the job went"

    families = {family.name: family for family in text_string_to_metric_families(operator.get("/metrics")[1])}
    counted = {s.labels["reason"]: s.value for s in families["dtj_jobs_finished"].samples if s.name.endswith("_total")}
    assert {reason: count for reason, count in counted.items() if count} == {"AllWorkersSucceeded": 1}
    phases = {s.labels["phase"]: s.value for s in families["dtj_jobs"].samples}
    assert (phases["Complete"], sum(phases.values())) == (1, 1)
    codes = {
        (s.labels["verb"], s.labels["resource"], s.labels["code"]) for s in families["dtj_kube_client_requests"].samples
    }
    assert ("apply", "statefulsets", "201") in codes
    assert operator.get("/healthz") == (200, "ok\n")
    assert operator.terminate() == 0
    assert operator.lines()[-1]["message"] == "stopped"


def test_next_operator_writes_nothing_for_settled_jobs(
    start_operator: Start, submit: Callable[..., Any], objects: Objects, kubelet: Kubelet, agents: Agents
) -> None:
    first = start_operator().ready()
    job = submit()
    agents.statuses[job["metadata"]["uid"]] = running()
    wait_until("the job runs", lambda: objects.condition("j", "Running"))
    wait_until("an event states its start", lambda: story(objects))
    assert first.terminate() == 0
    before = len(first.writes())
    second = start_operator().ready()
    asked = agents.asked
    wait_until("the operator reconciles the job", lambda: agents.asked >= asked + 3)
    assert len(second.writes()) == before


def test_deleting_a_job_leaves_nothing_and_needs_no_operator(
    start_operator: Start, submit: Callable[..., Any], objects: Objects, kubelet: Kubelet
) -> None:
    operator = start_operator().ready()
    submit()
    wait_until("the pods exist", lambda: len(objects.list("pods")) == 2)
    operator.kill()
    objects.plane.request("DELETE", objects.path(JOBS, "j"))
    # The garbage collector discovers a new kind only every 30 s.
    for plural in ("statefulsets", "services", "pods"):
        wait_until(f"no {plural}", lambda plural=plural: not objects.list(plural), timeout=60)
    wait_until("no secret", lambda: not objects.get("secrets", "j-dtj-agent"))
    assert not objects.list(JOBS)


def test_suspend_deletes_the_pods_and_resume_recreates_them(
    start_operator: Start, submit: Callable[..., Any], objects: Objects, kubelet: Kubelet, agents: Agents
) -> None:
    start_operator().ready()
    job = submit()
    agents.statuses[job["metadata"]["uid"]] = running(attempt=3)
    wait_until("the job runs", lambda: objects.condition("j", "Running"))

    def suspend(value: bool) -> None:
        objects.change(JOBS, "j", lambda job: job["spec"].update(suspend=value))

    suspend(True)
    condition = wait_until("the job is suspended", lambda: objects.condition("j", "Suspended"))
    assert condition["observedGeneration"] == objects.get(JOBS, "j")["metadata"]["generation"]
    assert not objects.list("pods")
    suspend(False)
    wait_until("the pods exist again", lambda: len(objects.list("pods")) == 2)
    floor = {
        entry["name"]: entry.get("value")
        for container in objects.get("statefulsets", "j")["spec"]["template"]["spec"]["containers"]
        for entry in container.get("env", [])
    }[names.ENV_ATTEMPT_FLOOR]
    assert int(floor) == 4, "attempt numbers continue to rise"


def test_deadline_fails_the_job_and_its_ttl_deletes_it(
    start_operator: Start, submit: Callable[..., Any], objects: Objects
) -> None:
    start_operator().ready()
    submit(activeDeadlineSeconds=1)
    failed = wait_until("the job has failed", lambda: objects.condition("j", "Failed"))
    assert failed["reason"] == "DeadlineExceeded"
    submit("k", activeDeadlineSeconds=1, ttlSecondsAfterFinished=1)
    wait_until("the job is gone", lambda: objects.get(JOBS, "k") is None)


def test_deleted_or_scaled_children_are_restored(
    start_operator: Start, submit: Callable[..., Any], objects: Objects, kubelet: Kubelet
) -> None:
    start_operator().ready()
    submit()
    first = wait_until("the StatefulSet exists", lambda: objects.get("statefulsets", "j"))
    objects.plane.request("DELETE", objects.path("statefulsets", "j"))
    wait_until(
        "another set",
        lambda: (objects.get("statefulsets", "j") or first)["metadata"]["uid"] != first["metadata"]["uid"],
        # The pods of the first job must be gone, and the garbage collector takes its time.
        timeout=60,
    )
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "j", "namespace": objects.namespace}}
    objects.plane.request("PUT", objects.path("statefulsets", "j") + "/scale", scale | {"spec": {"replicas": 5}})
    wait_until("2 again", lambda: objects.get("statefulsets", "j")["spec"]["replicas"] == 2)


TYPO = {"spec": {"containers": [{"name": "trainer", "imagePullPolcy": "Always"}]}}
INVALID = {
    "spec": {"containers": [{"name": "trainer", "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}}]}
}


@pytest.mark.parametrize(
    ("template", "says"),
    [
        pytest.param(TYPO, "imagePullPolcy", id="a typo"),
        pytest.param(INVALID, "less than or equal to cpu limit", id="invalid"),
    ],
)
def test_invalid_template_fails_the_job_with_the_message_and_is_not_retried(
    template: Any, says: str, start_operator: Start, submit: Callable[..., Any], objects: Objects
) -> None:
    operator = start_operator().ready()
    began = time.monotonic()
    submit(template=template)
    failed = wait_until("the job has failed", lambda: objects.condition("j", "Failed"))
    print(f"failed after {time.monotonic() - began:.2f} s: {failed['message']}")
    assert failed["reason"] == "TemplateRejected"
    assert says in failed["message"]
    assert objects.get("statefulsets", "j") is None
    events = wait_until("an event exists", lambda: objects.list("events"))
    assert "TemplateRejected" in {event["reason"] for event in events}
    before = len(operator.writes())
    time.sleep(3)  # observes that nothing happens
    assert len(operator.writes()) == before
    dry_runs = [call["requestURI"] for call in operator.calls() if "dryRun" in call["requestURI"]]
    assert len([uri for uri in dry_runs if "/pods?" in uri]) == 1, dry_runs


def test_full_quota_delays_a_job_and_fails_none(
    start_operator: Start, submit: Callable[..., Any], objects: Objects, kubelet: Kubelet, agents: Agents
) -> None:
    objects.plane.request(
        "POST",
        f"/api/v1/namespaces/{objects.namespace}/resourcequotas",
        {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}},
    )
    where = f"/api/v1/namespaces/{objects.namespace}/resourcequotas/q"
    wait_until("the quota counts", lambda: objects.plane.request("GET", where).get("status", {}).get("hard"))
    start_operator().ready()
    job = submit()
    agents.statuses[job["metadata"]["uid"]] = running()
    wait_until("the status reports it", lambda: objects.reason("j") == "ChildRefused")
    assert not objects.condition("j", "Failed")
    change(objects.plane, where, lambda quota: quota["spec"]["hard"].update(pods="10"))
    wait_until("the job runs", lambda: objects.condition("j", "Running"), timeout=60)


def test_budget_raised_while_the_job_runs_reaches_the_agent_and_recreates_no_pod(
    start_operator: Start, submit: Callable[..., Any], objects: Objects, kubelet: Kubelet, agents: Agents
) -> None:
    start_operator().ready()
    job = submit()
    agents.statuses[job["metadata"]["uid"]] = running(step=5)
    wait_until("the job runs", lambda: objects.condition("j", "Running"))
    pods = {pod["metadata"]["uid"] for pod in objects.list("pods")}
    generation = objects.get("statefulsets", "j")["metadata"]["generation"]
    objects.change(JOBS, "j", lambda job: job["spec"].update(restart={"maxRestarts": 77}))
    raised = wait_until(
        "the agent has the new budget",
        lambda: (found := agents.handed_over.budget) and found.max_restarts == 77 and found,
    )
    assert raised.generation == objects.get(JOBS, "j")["metadata"]["generation"] == 2
    assert {pod["metadata"]["uid"] for pod in objects.list("pods")} == pods
    assert objects.get("statefulsets", "j")["metadata"]["generation"] == generation
    kubelet.container_states["j-0"] = outcome(job, "Succeeded", "AllWorkersSucceeded")
    wait_until("the job is complete", lambda: objects.condition("j", "Complete"))


def test_claim_of_a_template_is_created_once_and_goes_with_its_job(
    start_operator: Start, submit: Callable[..., Any], objects: Objects
) -> None:
    start_operator().ready()
    volume = {"claimTemplate": {"size": "1Gi", "storageClassName": "none", "whenDeleted": "Delete"}}
    job = submit(checkpoint={"volume": volume})
    wait_until("the pods exist", lambda: len(objects.list("pods")) == 2)
    claim = objects.get("persistentvolumeclaims", "j-checkpoints")
    assert claim["spec"]["resources"] == {"requests": {"storage": "1Gi"}}
    assert [owner["uid"] for owner in claim["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
    submit("kept", checkpoint={"volume": {"claimTemplate": {"size": "1Gi"}}})
    wait_until("the pods exist", lambda: len(objects.list("pods")) == 4)
    assert "ownerReferences" not in objects.get("persistentvolumeclaims", "kept-checkpoints")["metadata"]


def test_job_of_another_controller_is_never_written(
    start_operator: Start, submit: Callable[..., Any], objects: Objects
) -> None:
    start_operator().ready()
    submit("foreign", managedBy="example.com/mine")
    submit("own")
    wait_until("the pods of the other job exist", lambda: len(objects.list("pods")) == 2)
    assert "status" not in objects.get(JOBS, "foreign")
    assert [each["metadata"]["name"] for each in objects.list("statefulsets")] == ["own"]
