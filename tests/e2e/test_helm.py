"""`helm test`, and `helm upgrade` and `helm rollback` beside a job that runs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hack.images.deploy import NAMESPACE, RELEASE
from hack.images.recipes import ROOT
from tests.e2e.conftest import slowed
from tests.e2e.kit import DTJ, Job, Kubectl, Result, leader, wait_until
from tests.e2e.test_recovery import assert_resumed

# A node pulls the trainer's image before, and helm waits for a rollout with two leases.
SECONDS = 150
HOOKS = ("pods", "serviceaccounts", "roles", "rolebindings", "secrets", "services", "statefulsets", DTJ)


def helm(*arguments: str) -> Result:
    command = ["helm", "--namespace", NAMESPACE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 30, check=False)
    return Result(done.returncode, done.stdout, done.stderr)


def helm_ok(*arguments: str) -> str:
    done = helm(*arguments)
    assert done.code == 0, done.err + done.out
    return done.out


def helm_test() -> tuple[bool, str]:
    """Returns whether `helm test` succeeds, and what it prints: the pod's log goes to stderr."""
    done = helm("test", RELEASE, f"--timeout={SECONDS}s")
    print(done.out, done.err)
    return done.code == 0, done.out + done.err


def upgrade(**values: str) -> None:
    """Upgrades the release with changed values, and waits for the rollout."""
    chosen = [f"--set={key.replace('__', '.')}={value}" for key, value in values.items()]
    wait = ["--wait", f"--timeout={SECONDS}s"]
    helm_ok("upgrade", RELEASE, str(ROOT / "charts/dtj-operator"), "--reuse-values", *chosen, *wait)


def revision() -> int:
    [found] = json.loads(helm_ok("list", "--filter", f"^{RELEASE}$", "--output", "json"))
    return int(found["revision"])


def rollback(to: int) -> None:
    helm_ok("rollback", RELEASE, str(to), "--wait", f"--timeout={SECONDS}s", "--history-max=5")


@pytest.fixture
def before(cluster: dict[str, str]) -> Iterator[int]:
    """Returns the revision that `make deploy` installed. Its values hold again after the test."""
    values = helm_ok("get", "values", RELEASE, "--output", "json")
    number = revision()
    yield number
    if helm_ok("get", "values", RELEASE, "--output", "json") != values:
        rollback(number)


def everything(operator: Kubectl) -> set[tuple[str, str]]:
    """Returns kind and name of all that `helm test` creates in the operator's namespace."""
    found: list[Any] = [each for kind in HOOKS for each in operator.list(kind)]
    ours = {(each["kind"], each["metadata"]["name"]) for each in found}
    return {(kind, name) for kind, name in ours if not name.startswith("sh.helm.release")}


def uids(job: Job) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in job.pods().items()}


def test_helm_upgrade_test_and_rollback_leave_a_running_job_alone(
    before: int, make_job: Callable[..., Job], undisturbed: Job, operator: Kubectl, images: dict[str, str]
) -> None:
    """`helm test` completes a job of gloo and leaves nothing behind.

    A job that is created between both gets its agent in a volume, and recovers from the loss of its pod.
    The upgrade and the rollback replace the operator's pods and no pod of the job, whose losses are the oracle's.
    """
    job = make_job(entrypoint={"module": "dtj_trainer.examples.digits", "args": slowed(400)}).create()
    job.until_step(5)
    pods, first = uids(job), leader(operator)["metadata"]["uid"]
    # With an image of the user's, the test's job fails unless its ranks import torch.
    changed = {"log__level": "debug", "agent__delivery": "image-volume"}
    upgrade(test__image=images["trainer"], resyncSeconds="60", **changed)
    second = leader(operator, other_than=[first])["metadata"]["uid"]
    new = make_job("delivered", replicas=2, entrypoint={"module": "dtj_trainer.examples.digits", "args": slowed(60)})
    new.create().until_step(5)
    assert "initContainers" not in new.pods()["delivered-1"]["spec"], "its agent is in a volume"
    new.kubectl("delete", "pod", "delivered-1", "--wait=false", "--grace-period=1")
    assert new.wait("Complete", 180)["status"]["restarts"]["pod"] == 1
    there = everything(operator)
    succeeded, text = helm_test()
    assert succeeded
    assert "the job is complete; gloo added up a tensor: yes" in text
    # The pods of its job terminate after it.
    wait_until("nothing of helm test is left", lambda: everything(operator) <= there, timeout=90)
    rollback(before)
    leader(operator, other_than=[first, second])
    assert helm_ok("get", "values", RELEASE, "--revision", str(before)) == helm_ok("get", "values", RELEASE)
    assert uids(job) == pods, "the job ran all the time"
    status = job.wait("Complete", 180)["status"]
    assert_resumed(job, undisturbed, 1, recovered=False)
    assert (status["attempt"], status["restarts"]["total"]) == (1, 0)


def test_failed_helm_test_shows_why_and_the_next_one_replaces_what_it_left(before: int, operator: Kubectl) -> None:
    # The operator's image has no torch.
    pods = operator.list("pods", "app.kubernetes.io/name=dtj-operator")
    [image] = {c["image"] for pod in pods for c in pod["spec"]["containers"]}
    upgrade(test__image=image)
    succeeded, text = helm_test()
    assert not succeeded
    assert "No module named 'torch'" in text
    assert operator.list(DTJ) == [], "the test deletes its job in any case"
    upgrade(test__image="")
    succeeded, text = helm_test()
    assert succeeded
    assert "gloo added up a tensor: not tried" in text
    assert [name for _, name in everything(operator) if name.endswith("-test")] == []
