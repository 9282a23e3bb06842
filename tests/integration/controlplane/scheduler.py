"""Real schedulers as processes: kube-scheduler, with the plugin for gangs or without."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from dtj_operator import rbac
from hack.cluster import gobuild
from hack.cluster.controlplane import ControlPlane
from hack.cluster.versions import PARTNERS
from tests.integration.controlplane import crds
from tests.integration.controlplane.support import SERVICE_ACCOUNT, bind

# As the chart of scheduler-plugins configures it, but for the time that a part of a gang keeps nodes reserved.
COSCHEDULING = {
    "schedulerName": "scheduler-plugins-scheduler",
    "plugins": {
        "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
        "queueSort": {"enabled": [{"name": "Coscheduling"}], "disabled": [{"name": "*"}]},
    },
    "pluginConfig": [{"name": "Coscheduling", "args": {"permitWaitingTimeSeconds": 10}}],
}
PLAIN = {"schedulerName": "default-scheduler"}


def install_pod_groups(plane: ControlPlane) -> None:
    """Installs the PodGroups of scheduler-plugins."""
    source = Path(gobuild.download(PARTNERS["coscheduling"])["Dir"])
    crds.install(plane, yaml.safe_load((source / "config/crd/bases/scheduling.x-k8s.io_podgroups.yaml").read_text()))


@contextmanager
def running_scheduler(plane: ControlPlane, program: str, profile: Mapping[str, Any], folder: Path) -> Iterator[None]:
    """Runs a scheduler with one profile until the end of the block, and checks that it has not died before."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(plane.kubeconfig)},
        "leaderElection": {"leaderElect": False},
        "profiles": [profile],
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    log = folder / "scheduler.log"
    with log.open("wb") as stream:
        command = [str(gobuild.binary(program)), f"--config={folder}/config.yaml", "--secure-port=0"]
        # No event wakes the pods of a gang that the plugin has rejected when other pods free their nodes. The
        # scheduler tries them again after this time, which is 5 minutes by default.
        command.append("--pod-max-in-unschedulable-pods-duration=20s")
        process = subprocess.Popen(command, stdout=stream, stderr=stream)
    try:
        yield
        assert process.poll() is None, log.read_text()[-4000:]
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()  # does nothing to a process that has ended


def grant(plane: ControlPlane, namespace: str, account: str = SERVICE_ACCOUNT) -> None:
    """Grants the rights that the chart adds with podGroups.enabled."""
    bind(plane, namespace, f"{account}-gangs", rbac.rules(rbac.POD_GROUP_RULES), (namespace, account))
