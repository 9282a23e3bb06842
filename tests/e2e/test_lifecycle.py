"""Suspend and resume, deadlines, TTL."""

from __future__ import annotations

from collections.abc import Callable

from tests.e2e.kit import DTJ, Job, is_true, wait_until
from tests.e2e.test_recovery import assert_resumed

SLEEPER = {"spec": {"containers": [{"name": "trainer", "command": ["python3", "-c", "import time; time.sleep(600)"]}]}}


def test_suspend_deletes_the_pods_and_resume_uses_the_checkpoint(
    make_job: Callable[..., Job], undisturbed: Job
) -> None:
    job = make_job().create()
    job.until_step(50)
    job.kubectl("patch", "dtj", "digits", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    suspended = job.wait("Suspended", 90)
    assert not is_true(suspended, "Running")
    wait_until("no pod is left", lambda: not job.pods(), timeout=60)
    at = job.step()
    job.kubectl("patch", "dtj", "digits", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    job.until_step(at + 1)
    status = job.wait("Complete", 180)["status"]
    assert_resumed(job, undisturbed, 2, recovered=False)
    assert status["restarts"]["counted"] == 0


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
