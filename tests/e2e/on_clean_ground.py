"""Jobs that share a name one after the other, lose their namespace, or meet a quota; part of `make test-long`."""

from __future__ import annotations

from collections.abc import Callable

from tests.e2e.kit import Job, Kubectl, Object, conditions, is_true, wait_until


def test_job_of_a_deleted_jobs_name_resumes_from_its_checkpoints(
    make_job: Callable[..., Job], undisturbed: Job
) -> None:
    first = make_job().create()
    first.until_step(50)
    uid = first.get()["metadata"]["uid"]
    first.delete()
    second = make_job().create()
    done = second.wait("Complete", 240)
    assert done["metadata"]["uid"] != uid
    assert done["status"]["restarts"]["total"] == 0
    steps = [record["step"] for record in second.records() if "loss" in record]
    assert steps.count(1) == 1, "it did not begin again"
    assert second.losses() == undisturbed.losses()


def test_deleted_namespace_takes_its_running_job_along(make_job: Callable[..., Job], kubectl: Kubectl) -> None:
    job = make_job().create()
    job.until_step(5)
    Kubectl()("delete", "namespace", kubectl.namespace, "--wait=false")
    wait_until("the namespace is gone", lambda: Kubectl().get("namespace", kubectl.namespace) is None, timeout=180)


def test_quota_below_what_runs_stops_nothing_and_is_named_when_a_pod_is_lost(
    make_job: Callable[..., Job], kubectl: Kubectl, undisturbed: Job
) -> None:
    def quota(pods: int) -> Object:
        spec = {"hard": {"pods": str(pods)}}
        return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"}, "spec": spec}

    job = make_job().create()
    job.until_step(30)
    kubectl.apply(quota(2))
    job.until_step(60)
    assert is_true(job.get(), "Running"), "a quota ends no pod"
    kubectl("delete", "pod", "digits-2", "--wait=false", "--grace-period=1")

    def is_named() -> bool:
        found = conditions(job.get()).get("Restarting", {})
        return found.get("status") == "True" and "exceeded quota: small" in found["message"]

    wait_until("the condition names the quota", is_named, timeout=150)
    kubectl.apply(quota(9))
    done = job.wait("Complete", 240)
    assert done["status"]["restarts"]["counted"] == 0
    assert job.losses() == undisturbed.losses()
