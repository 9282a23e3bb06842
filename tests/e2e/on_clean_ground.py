"""Jobs that share a name, lose their namespace, meet a quota or a wrong clock; part of `make test-long`."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.e2e.kit import Job, Kubectl, Object, conditions, is_true, wait_until
from tests.e2e.test_recovery import KILL_WORKER

CLOCK = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset(void) {
    const char *pod = getenv("POD_INDEX"), *wrong = getenv("WRONG_INDEX"), *by = getenv("WRONG_BY");
    return pod && wrong && by && pod[0] == wrong[0] ? atol(by) : 0;
}
int clock_gettime(clockid_t id, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, id, now);
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) now->tv_sec += offset();
    return result;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
"""
HOUR = 3600


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


@pytest.mark.parametrize(("index", "seconds"), [(0, HOUR), (0, -HOUR), (1, HOUR)])
def test_clock_of_a_node_an_hour_off_changes_nothing(
    make_job: Callable[..., Job], kubectl: Kubectl, shared_root: Path, undisturbed: Job, index: int, seconds: int
) -> None:
    """The nodes of the cluster share a clock, so that a library gives another one to all processes of one pod."""
    library = shared_root / kubectl.namespace / "clock.so"
    flags = ["-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(["gcc", *flags], input=CLOCK, text=True, check=True, timeout=60)
    own = {"fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}}
    environment = {"LD_PRELOAD": "/checkpoints/clock.so", "WRONG_INDEX": str(index), "WRONG_BY": str(seconds)}
    variables = [{"name": name, "value": value} for name, value in environment.items()]
    job = make_job(env=[*variables, {"name": "POD_INDEX", "valueFrom": own}]).create()
    job.until_step(30)
    pod = f"{job.name}-{index}"
    shown = kubectl("exec", pod, "-c", "trainer", "--", "python3", "-c", "import time; print(time.time())")
    assert abs(float(shown) - time.time() - seconds) < 60, "the clock is off"
    kubectl("exec", pod, "-c", "trainer", "--", "python3", "-c", KILL_WORKER)
    job.until_step(60, attempt=2)
    kubectl("delete", "pod", f"{job.name}-{1 - index}", "--wait=false", "--grace-period=1")
    done = job.wait("Complete", 240)
    assert done["status"]["restarts"] == {"total": 2, "inPlace": 1, "pod": 1, "counted": 1}
    assert job.losses() == undisturbed.losses()
    assert "AgentUnreachable" not in conditions(done)
    now = datetime.now(UTC)
    for time_ in (done["status"]["startTime"], done["status"]["completionTime"]):
        assert abs((now - datetime.fromisoformat(time_)).total_seconds()) < 0.2 * HOUR, done["status"]
    assert 0 < done["status"]["goodput"] <= 1, done["status"]
