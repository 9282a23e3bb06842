"""From `kubectl apply` to Complete: the main job, and the GPT."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.e2e.audit import operator_writes
from tests.e2e.kit import Job, Kubectl, conditions, is_true, leader, wait_until


def test_digits_on_three_pods_completes_and_releases_its_pods(undisturbed: Job) -> None:
    job = undisturbed.get()
    status = job["status"]
    assert is_true(job, "Complete")
    assert not is_true(job, "Running")
    assert conditions(job)["Complete"]["observedGeneration"] == job["metadata"]["generation"]
    assert status["phase"] == "Complete"
    assert status["attempt"] == 1
    assert status["restarts"] == {"total": 0, "inPlace": 0, "pod": 0, "counted": 0}
    assert status["progress"]["step"] == status["progress"]["totalSteps"] == undisturbed.step()
    assert undisturbed.records()[-1]["validation_accuracy"] >= 0.95
    wait_until("no pod is left", lambda: not undisturbed.pods(), timeout=60)


def test_kubectl_wait_returns_and_the_printed_columns_show_the_result(undisturbed: Job) -> None:
    assert undisturbed.kubectl("wait", "--for=condition=Complete", "dtj/digits", "--timeout=5s")
    header, row = undisturbed.kubectl("get", "dtj", "digits").splitlines()
    assert header.split()[:2] == ["NAME", "PHASE"]
    assert row.split()[:2] == ["digits", "Complete"]


def test_three_pod_job_costs_at_most_15_api_writes(undisturbed: Job, cluster: dict[str, str]) -> None:
    writes = operator_writes(cluster, undisturbed.kubectl.namespace)
    print(f"\nAPI writes from creation to Complete: {len(writes)}")
    for write in writes:
        print(" ", write)
    assert 4 <= len(writes) <= 15


def test_gpt_trains_on_the_text_of_the_standard_library(make_job: Callable[..., Job]) -> None:
    args = ["--steps", "30", "--batch-size", "4", "--block", "32", "--layers", "2", "--width", "64", "--seed", "3"]
    args += ["--log-every", "1", "--characters", "200000", "--data", "/tmp/text"]
    job = make_job(
        "gpt",
        replicas=2,
        entrypoint={"module": "dtj_trainer.examples.gpt", "args": args},
        checkpoint={"volume": {"claimName": "shared"}, "everySteps": 10},
    ).create()
    status = job.wait("Complete", 180)["status"]
    assert status["progress"]["step"] == 30
    losses = job.losses()
    assert losses[30] < losses[1]


def test_chart_and_job_fit_in_their_requested_memory(make_job: Callable[..., Job], operator: Kubectl) -> None:
    """The agent's resident memory beside a running training is at most 20 MB, the operator's 100 MB."""
    job = make_job("memory", replicas=1).create()
    job.until_step(1)
    status = job.kubectl("exec", "memory-0", "-c", "trainer", "--", "cat", "/proc/1/status")
    agent = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024
    pod = leader(operator)["metadata"]["name"]
    status = operator("exec", pod, "--", "cat", "/proc/1/status")
    rss = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024
    print(f"\nresident: agent {agent:.1f} MB, operator {rss:.1f} MB")
    assert agent <= 20
    assert rss <= 110
    job.delete()


def test_children_are_owned_by_the_job_and_pods_have_no_annotation_of_ours(make_job: Callable[..., Job]) -> None:
    job = make_job("owned").create()
    pods = wait_until("three pods", lambda: (p := job.pods()) and len(p) == 3 and p, timeout=30)
    uid = job.get()["metadata"]["uid"]
    for kind, name in (("service", "owned"), ("statefulset", "owned"), ("secret", "owned-dtj-agent")):
        child = job.kubectl.get(kind, name)
        assert child is not None
        assert [o["uid"] for o in child["metadata"]["ownerReferences"]] == [uid]
        assert "finalizers" not in child["metadata"]
    assert "finalizers" not in job.get()["metadata"]
    for pod in pods.values():
        assert not [a for a in pod["metadata"].get("annotations", {}) if "dtj" in a or "kopf" in a]
    assert "kopf" not in json.dumps(job.get())
    job.delete()
    selector = "training.dtj.dev/job-name=owned"
    wait_until(
        "delete leaves nothing",
        lambda: not [o for k in ("pods", "svc", "sts", "secrets") for o in job.kubectl.list(k, selector)],
        timeout=90,
    )
