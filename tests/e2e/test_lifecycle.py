"""Suspend and resume, deadlines, TTL."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.e2e.kit import DTJ, Job, is_true, wait_until
from tests.e2e.test_recovery import assert_resumed

SLEEPER = {"spec": {"containers": [{"name": "trainer", "command": ["python3", "-c", "import time; time.sleep(600)"]}]}}


def change(job: Job, **spec: object) -> None:
    job.kubectl("patch", "dtj", job.name, "--type=merge", "-p", json.dumps({"spec": spec}))


def suspend(job: Job) -> None:
    change(job, suspend=True)
    job.wait("Suspended", 120)


def test_suspend_deletes_the_pods_and_resume_uses_the_checkpoint(
    make_job: Callable[..., Job], undisturbed: Job
) -> None:
    job = make_job().create()
    job.until_step(50)
    suspend(job)
    assert not is_true(job.get(), "Running")
    wait_until("no pod is left", lambda: not job.pods(), timeout=60)
    at = job.step()
    change(job, suspend=False)
    job.until_step(at + 1)
    status = job.wait("Complete", 180)["status"]
    assert_resumed(job, undisturbed, 2, recovered=False)
    assert status["restarts"]["counted"] == 0


def test_replicas_and_image_change_while_the_job_is_suspended(make_job: Callable[..., Job]) -> None:
    job = make_job(replicas=4).create()
    job.until_step(30)
    named = next(iter(job.pods().values()))["status"]["containerStatuses"][0]
    suspend(job)
    at = job.step()
    change(job, replicas=2, suspend=False)
    job.until_step(at + 20, attempt=2)
    suspend(job)
    # Another name of the same image.
    change(job, replicas=3, image=named["imageID"], suspend=False)
    done = job.wait("Complete", 240)
    assert done["status"]["restarts"]["counted"] == 0
    assert done["status"]["replicas"] == 3
    assert sorted(job.losses()) == list(range(1, max(job.losses()) + 1)), "no step is missing"


def test_active_deadline_fails_a_job_that_takes_too_long(make_job: Callable[..., Job]) -> None:
    job = make_job("late", replicas=1, activeDeadlineSeconds=5, entrypoint=None, template=SLEEPER).create()
    ended = job.wait("Failed", 60)
    assert next(c["reason"] for c in ended["status"]["conditions"] if c["type"] == "Failed") == "DeadlineExceeded"
    wait_until("no pod is left", lambda: not job.pods(), timeout=60)


def test_finished_job_is_deleted_after_its_ttl(make_job: Callable[..., Job]) -> None:
    template = {"spec": {"containers": [{"name": "trainer", "command": ["python3", "-c", "print('done')"]}]}}
    job = make_job("brief", replicas=1, ttlSecondsAfterFinished=2, entrypoint=None, template=template).create()
    wait_until("the job is gone", lambda: job.kubectl.get(DTJ, "brief") is None, timeout=90)
    wait_until("its children too", lambda: job.kubectl.get("service", "brief") is None, timeout=60)
