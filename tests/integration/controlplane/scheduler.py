"""Real schedulers as processes: kube-scheduler, with the plugin for gangs or without, and Volcano."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from dtj_operator import rbac
from hack.cluster import gobuild, volcano
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
    command = [str(gobuild.binary(program)), f"--config={folder}/config.yaml", "--secure-port=0"]
    # No event wakes the pods of a gang that the plugin has rejected when other pods free their nodes. The
    # scheduler tries them again after this time, which is 5 minutes by default.
    command.append("--pod-max-in-unschedulable-pods-duration=20s")
    with _running(command, folder / "scheduler.log"):
        yield


def install_volcano(plane: ControlPlane) -> None:
    """Installs the CRDs of Volcano, and the namespace that its programs expect."""
    folders = [volcano.source() / "config/crd" / each / "bases" for each in ("volcano", "jobflow")]
    for file in sorted(file for folder in folders for file in folder.glob("*.yaml")):
        crds.install(plane, yaml.safe_load(file.read_text()))
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": "volcano-system"}})


@contextmanager
def running_volcano(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """Runs Volcano's scheduler, with the configuration of its chart, and its controllers until the end of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    shared = [f"--kubeconfig={plane.kubeconfig}", "--leader-elect=false"]
    config = volcano.source() / "installer/helm/chart/volcano/config/volcano-scheduler.conf"
    controllers = [str(volcano.program("controller-manager")), *shared]
    schedules = [str(volcano.program("scheduler")), *shared, f"--scheduler-conf={config}", "--cache-dumper=false"]
    with _running(controllers, folder / "controllers.log"), _running(schedules, folder / "scheduler.log"):
        yield


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as stream:
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
