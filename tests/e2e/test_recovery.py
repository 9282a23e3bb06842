"""Recovery with an oracle: a disturbed run does the same steps as an undisturbed one.

The losses are compared as floats, bit for bit: same seed, same world size, gloo on CPUs.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import pytest

from tests.e2e.conftest import slowed
from tests.e2e.kit import Job, Kubectl, Object, leader, steps_by_attempt

EVERY = 20  # checkpoint.everySteps of the suite's job


def assert_resumed(job: Job, undisturbed: Job, attempts: int, *, recovered: bool = True) -> None:
    """Checks that each attempt resumed at its checkpoint, at most one interval back.

    The losses must be the oracle's.
    """
    runs = list(steps_by_attempt(job.records()))
    assert len(runs) >= attempts
    for (_, before), (_, after) in itertools.pairwise(runs):
        lost = before[-1] - (after[0] - 1)
        assert 0 <= lost <= EVERY, f"{lost} steps lost: {before[-1]} -> {after[0]}"
    for _, steps in runs:
        assert steps == list(range(steps[0], steps[-1] + 1)), "a step is missing or repeated within an attempt"
    assert job.losses() == undisturbed.losses()
    if not recovered:
        return  # a resumed job has none
    status = job.get()["status"]
    recoveries = status["recoveries"]
    spans = [(attempt, steps[0], steps[-1]) for attempt, steps in runs]
    evidence = json.dumps([spans, recoveries, status.get("failures")], indent=1)
    assert recoveries[-1]["resumedStep"] == runs[-1][1][0] - 1, evidence
    print("\n", [{k: r.get(k) for k in ("kind", "reason", "lostSteps", "seconds")} for r in recoveries])


@pytest.mark.parametrize("ordinal", [1, 0])
def test_deleted_pod_is_recreated_and_the_job_resumes_from_its_checkpoint(
    make_job: Callable[..., Job], undisturbed: Job, ordinal: int
) -> None:
    job = make_job().create()
    job.until_step(50)
    survivors = {n: p["metadata"]["uid"] for n, p in job.pods().items() if n != f"digits-{ordinal}"}
    job.kubectl("delete", "pod", f"digits-{ordinal}", "--wait=false", "--grace-period=1")
    job.until_step(70, attempt=2)
    now = {n: p["metadata"]["uid"] for n, p in job.pods().items() if n != f"digits-{ordinal}"}
    assert now == survivors, "the other pods stay"
    status = job.wait("Complete", 180)["status"]
    assert_resumed(job, undisturbed, 2)
    assert status["restarts"]["pod"] >= 1
    assert status["restarts"]["counted"] == 0, "a deletion never costs budget"
    assert status["attempt"] >= 2


def test_killed_worker_is_restarted_in_place_and_no_pod_is_touched(
    make_job: Callable[..., Job], undisturbed: Job
) -> None:
    job = make_job(cleanPodPolicy="None").create()
    job.until_step(50)
    before = {n: p["metadata"]["uid"] for n, p in job.pods().items()}
    job.kubectl("exec", "digits-1", "-c", "trainer", "--", "python3", "-c", KILL_WORKER)
    job.until_step(70, attempt=2)
    pods = job.pods()
    assert {n: p["metadata"]["uid"] for n, p in pods.items()} == before
    assert all(c["restartCount"] == 0 for p in pods.values() for c in p["status"]["containerStatuses"])
    status = job.wait("Complete", 180)["status"]
    assert_resumed(job, undisturbed, 2)
    assert status["restarts"] == {"total": 1, "inPlace": 1, "pod": 0, "counted": 1}
    failure = status["failures"][-1]
    assert (failure["rank"], failure["pod"], failure["signal"]) == (1, "digits-1", "SIGKILL")
    assert len(job.pods()) == 3, "cleanPodPolicy None keeps the pods"


def test_operator_killed_mid_run_and_during_a_restart_changes_nothing(
    make_job: Callable[..., Job], undisturbed: Job, operator: Kubectl
) -> None:
    # Slow enough that the run outlasts the start of another operator, which takes 10 s on a busy
    # machine.
    job = make_job(entrypoint={"module": "dtj_trainer.examples.digits", "args": slowed(150)}).create()
    job.until_step(30)
    kill_operator(operator)
    job.until_step(50)
    job.kubectl("delete", "pod", "digits-2", "--wait=false", "--grace-period=1")
    kill_operator(operator)  # while the group waits for its pod
    job.until_step(80, attempt=2)
    job.kubectl("exec", "digits-0", "-c", "trainer", "--", "python3", "-c", KILL_WORKER)
    kill_operator(operator)
    status = job.wait("Complete", 200)["status"]
    assert_resumed(job, undisturbed, 3)
    assert status["restarts"]["inPlace"] == 1
    assert status["restarts"]["pod"] == 1
    assert status["restarts"]["counted"] == 1


# Inside the pod: SIGKILL to the first worker process, without pkill because the image has no
# procps.
KILL_WORKER = """
import os, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        if b"\\0RANK=" in b"\\0" + open(f"/proc/{pid}/environ", "rb").read():
            os.kill(int(pid), signal.SIGKILL)
            break
    except OSError:
        pass
else:
    raise SystemExit("no worker found")
"""


def kill_operator(operator: Kubectl) -> None:
    """Kills all replicas of the operator with SIGKILL; its Deployment creates other pods, and one of them leads."""

    def pods() -> list[Object]:
        return operator.list("pods", "app.kubernetes.io/name=dtj-operator")

    old = {p["metadata"]["uid"] for p in pods()}
    for pod in pods():
        operator("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force")
    leader(operator, other_than=old)
