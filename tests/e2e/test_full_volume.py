"""A full checkpoint volume: a tmpfs of 16 MiB in one node, filled up beside the training."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.kit import Job, Kubectl, Object, docker, wait_until

NODE = "dtj-worker"


@pytest.fixture
def small(kubectl: Kubectl) -> Iterator[str]:
    """Returns the folder in the node that backs the claim `small`."""
    name = f"dtj-small-{uuid.uuid4().hex[:4]}"
    path = f"/var/lib/{name}"
    docker("exec", NODE, "sh", "-c", f"mkdir {path} && mount -t tmpfs -o size=16m,mode=1777 tmpfs {path}")
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
    volume: Object = {
        "accessModes": ["ReadWriteMany"],
        "capacity": {"storage": "16Mi"},
        "hostPath": {"path": path},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        "claimRef": {"namespace": kubectl.namespace, "name": "small"},
    }
    claim = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "resources": {"requests": {"storage": "16Mi"}}}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume},
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "small"},
            "spec": claim | {"volumeName": name},
        },
    )
    yield path
    docker("exec", NODE, "sh", "-c", f"umount -l {path} && rmdir {path}")
    kubectl("delete", "persistentvolume", name, "--wait=false")


def test_full_volume_is_an_event_with_the_free_space_and_training_continues(
    make_job: Callable[..., Job], small: str
) -> None:
    args = ["--epochs", "8", "--batch-size", "24", "--step-time-ms", "40", "--log-every", "1"]
    job = make_job(
        "full",
        replicas=2,
        entrypoint={"module": "dtj_trainer.examples.digits", "args": args},
        checkpoint={"volume": {"claimName": "small"}, "everySteps": 20, "keep": 2},
    ).create()

    def valid() -> list[str]:
        return sorted(docker("exec", NODE, "find", small, "-name", "step-*").split())

    wait_until("a first checkpoint", valid, timeout=90)

    def refused() -> list[str]:
        docker(
            "exec", NODE, "sh", "-c", f"cat /dev/zero >> {small}/filler 2>/dev/null; true"
        )  # until the volume is full
        return [line for line in job.kubectl("describe", "dtj", "full").splitlines() if "CheckpointFailed" in line]

    event = wait_until("the event", refused, timeout=60)[0]
    print(f"\n{event}")
    assert "of 16 MiB free in /" in event
    failed = int(event.split(" step ")[1].split(":")[0])

    def step() -> int:
        return max(int(n) for n in re.findall(r" step=(\d+) ", job.kubectl("logs", "full-0", "--tail=50")))

    before = step()
    wait_until("the training continues", lambda: step() > max(before, failed), timeout=90)
    newest = valid()[-1]
    assert int(newest.rsplit("-", 1)[1]) < failed, "the last complete checkpoint still exists"
    assert docker("exec", NODE, "test", "-s", f"{newest}/manifest.json") == ""
    docker("exec", NODE, "rm", f"{small}/filler")
    status = job.wait("Complete", 120)["status"]
    assert status["attempt"] == 1, "a full volume is no reason to restart"
    assert status["checkpoint"]["step"] == status["progress"]["step"] == 479
