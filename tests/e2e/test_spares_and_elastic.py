"""A spare takes the ranks of a lost pod; an elastic job continues with fewer pods, and takes in more."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

from tests.e2e.conftest import DIGITS_ARGS
from tests.e2e.kit import Job, wait_until
from tests.e2e.test_recovery import assert_resumed

# Slow enough that a pod which comes up on a busy machine still finds the job running.
SLOW_ARGS = ["250" if before == "--step-time-ms" else arg for before, arg in itertools.pairwise(["", *DIGITS_ARGS])]


def test_spare_takes_the_ranks_of_pod_0_and_the_returned_pod_is_the_spare(
    make_job: Callable[..., Job], undisturbed: Job
) -> None:
    job = make_job(spares=1).create()
    wait_until("a ready spare", lambda: job.get().get("status", {}).get("spares") == 1, timeout=150)
    job.until_step(50)
    job.kubectl("delete", "pod", "digits-0", "--wait=false", "--grace-period=1")
    status = job.wait("Complete", 180)["status"]
    assert_resumed(job, undisturbed, 2)
    assert status["restarts"]["counted"] == 0
    (recovery,) = status["recoveries"]  # the pod that comes back disturbs nobody
    assert recovery["kind"] == "Spare"
    assert sum(recovery["seconds"].values()) < 10, recovery


def test_elastic_job_misses_no_step_over_two_scales(make_job: Callable[..., Job], undisturbed: Job) -> None:
    """Each rank drops other neurons than before, so the losses differ; tests/unit/trainer compares the samples."""
    slow = {"module": "dtj_trainer.examples.digits", "args": SLOW_ARGS}
    job = make_job(entrypoint=slow, elastic={"minReplicas": 2, "maxReplicas": 3}).create()
    job.until_step(30)
    for size in (2, 3):
        attempt = job.get()["status"]["attempt"]
        job.kubectl("scale", "dtj/digits", f"--replicas={size}")
        job.until_step(job.step() + 20, attempt=attempt + 1)
        wait_until(f"a group of {size} pods", functools.partial(has_pods, job, size), timeout=60)
    status = job.wait("Complete", 180)["status"]
    changes = [(r["reason"], r["fromReplicas"], r["toReplicas"], r["lostSteps"]) for r in status["recoveries"]]
    assert changes == [("GroupShrunk", 3, 2, 0), ("GroupGrown", 2, 3, 0)]
    assert status["restarts"]["counted"] == 0
    losses = job.losses()
    assert losses.keys() == undisturbed.losses().keys()
    assert losses[max(losses)] < 0.5


def has_pods(job: Job, size: int) -> bool:
    return bool(job.get()["status"]["replicas"] == size)
