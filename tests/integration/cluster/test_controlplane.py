"""The control plane on loopback starts in seconds, enforces RBAC and leaves no process behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.cluster import gobuild
from hack.cluster.controlplane import ControlPlane
from hack.cluster.shell import ProvisionError
from hack.cluster.versions import CONTROL_PLANE
from tests.lib.waiting import wait_until

pytestmark = pytest.mark.controlplane


@pytest.fixture(scope="module")
def bin_dir() -> Path:
    return gobuild.bin_folder(CONTROL_PLANE)


@pytest.fixture(scope="module")
def plane(bin_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(bin_dir, tmp_path_factory.mktemp("plane")) as started:
        yield started


def kubectl(plane: ControlPlane, kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(plane.bin_dir / "kubectl"), "--kubeconfig", str(kubeconfig), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_control_plane_is_ready_in_seconds(plane: ControlPlane) -> None:
    # The promised five seconds hold on a machine with an idle core.
    busy = os.getloadavg()[0] > (os.cpu_count() or 1)
    assert plane.started_in < (30 if busy else 5)


def test_administrator_may_do_everything(plane: ControlPlane) -> None:
    assert kubectl(plane, plane.kubeconfig, "auth", "can-i", "*", "*").stdout.strip() == "yes"


def test_user_has_the_permissions_that_rbac_grants(plane: ControlPlane) -> None:
    user = plane.kubeconfig_for("jane/o", ["readers", "night+shift"])
    refused = kubectl(plane, user, "get", "pods")
    assert refused.returncode == 1
    assert 'User "jane/o" cannot list resource "pods"' in refused.stderr
    kubectl(
        plane, plane.kubeconfig, "create", "clusterrolebinding", "readers", "--clusterrole=view", "--group=night+shift"
    )
    wait_until("the binding", lambda: kubectl(plane, user, "get", "pods").returncode == 0, timeout=60)
    assert kubectl(plane, user, "create", "namespace", "hers").returncode == 1


def test_kubeconfig_of_a_service_account_authenticates_as_it(plane: ControlPlane) -> None:
    login = plane.kubeconfig_for_service_account("default", "default")
    assert "system:serviceaccount:default:default" in kubectl(plane, login, "auth", "whoami").stdout


def test_controllers_create_pods_and_collect_garbage(plane: ControlPlane) -> None:
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "web"},
        "spec": {
            "serviceName": "web",
            "replicas": 2,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": "none"}]},
            },
        },
    }
    plane.request("POST", "/apis/apps/v1/namespaces/default/statefulsets", manifest)

    def pods() -> list[str]:
        listed = plane.request("GET", "/api/v1/namespaces/default/pods")["items"]
        return sorted(pod["metadata"]["name"] for pod in listed)

    wait_until("the StatefulSet's pods", lambda: pods() == ["web-0", "web-1"], timeout=60)
    plane.request("DELETE", "/apis/apps/v1/namespaces/default/statefulsets/web")
    wait_until("the garbage collector", lambda: pods() == [], timeout=60)


def test_audit_log_has_one_line_per_call(plane: ControlPlane) -> None:
    user = plane.kubeconfig_for("counted")
    kubectl(plane, user, "get", "--raw", "/version")
    mine = [event for event in plane.audit_events() if event["user"]["username"] == "counted"]
    assert [event["requestURI"] for event in mine] == ["/version"]


def test_crashed_api_server_restarts_at_the_same_address_with_its_data(plane: ControlPlane) -> None:
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": "kept"}})
    plane.crash_apiserver()
    with pytest.raises(OSError, match="refused"):
        plane.request("GET", "/version")
    plane.start_apiserver()
    assert plane.request("GET", "/api/v1/namespaces/kept")["metadata"]["name"] == "kept"


def test_stop_leaves_no_process(bin_dir: Path, tmp_path: Path) -> None:
    with ControlPlane(bin_dir, tmp_path) as plane:
        pids = plane.pids
        assert set(pids) == {"guard", "etcd", "kube-apiserver", "kube-controller-manager"}
        assert all(alive(pid) for pid in pids.values())
    assert not any(alive(pid) for pid in pids.values())


def test_no_process_outlives_a_killed_owner(bin_dir: Path, tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from hack.cluster.controlplane import ControlPlane\n"
        "plane = ControlPlane(Path(sys.argv[1]), Path(sys.argv[2])); plane.start()\n"
        "print(*plane.pids.values(), flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", script, str(bin_dir), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == 4
        owner.send_signal(signal.SIGKILL)
    wait_until(f"processes {pids} to end", lambda: not any(alive(pid) for pid in pids))


def test_error_names_the_command_that_builds_a_missing_program(tmp_path: Path) -> None:
    with pytest.raises(ProvisionError, match=r"hack\.cluster bin"), ControlPlane(tmp_path, tmp_path / "data"):
        pass
