"""The chart on a real API server: installed, upgraded, uninstalled, installed again."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dtj_contract import names
from dtj_operator.kube.client import Client
from dtj_operator.kube.login import Login
from dtj_operator.kube.resources import SECRET
from hack.cluster.controlplane import ControlPlane
from tests.integration.chart.conftest import Kubectl
from tests.integration.chart.kit import CHART, NAMESPACE, helm, pod, render, render_text
from tests.lib.waiting import wait_until

pytestmark = pytest.mark.controlplane

CRD = f"customresourcedefinition/{names.PLURAL}.{names.GROUP}"
JOB: dict[str, Any] = {
    "apiVersion": names.API_VERSION,
    "kind": names.KIND,
    "metadata": {"name": "j", "namespace": "team"},
    "spec": {"replicas": 1, "image": "trainer:test", "entrypoint": {"module": "m"}},
}


@pytest.fixture(scope="module")
def install(plane: ControlPlane) -> Callable[..., str]:
    def call(*arguments: str) -> str:
        command = ["upgrade", "--install", "dtj", str(CHART), "-n", NAMESPACE, *arguments]
        done = helm(*command, kubeconfig=plane.kubeconfig)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


@pytest.fixture(scope="module")
def notes(install: Callable[..., str]) -> str:
    """Installs the chart, and returns helm's output."""
    return install()


def master_key(kubectl: Kubectl, name: str = "key") -> str:
    done = kubectl("-n", NAMESPACE, "get", "secret", "dtj-operator-master-key", "-o", f"jsonpath={{.data.{name}}}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_api_server_accepts_every_object_of_the_chart(kubectl: Kubectl) -> None:
    # Include the Deployment's pod, which only the admission of a restricted namespace would check.
    spec = pod(render()) | {"serviceAccountName": "default"}
    one = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": NAMESPACE}, "spec": spec}
    for text in (render_text({}), json.dumps(one)):
        done = kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text)
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr, done.stderr


def test_notes_name_the_next_three_commands(notes: str) -> None:
    commands = [line.strip() for line in notes.splitlines() if line.startswith("  kubectl")]
    assert len(commands) == 3
    assert commands[0].startswith("kubectl -n dtj-system rollout status deployment/dtj-operator")


def test_upgrade_keeps_the_master_key(notes: str, install: Callable[..., str], kubectl: Kubectl) -> None:
    before = master_key(kubectl)
    install("--set", "metrics.port=9090")
    assert master_key(kubectl) == before


def test_rollback_keeps_a_master_key_that_was_replaced(
    notes: str, plane: ControlPlane, install: Callable[..., str], kubectl: Kubectl
) -> None:
    before, new = master_key(kubectl), base64.b64encode(b"n" * 64).decode()
    install("--set", "workers=4")
    keys = json.dumps({"data": {"key": new, "previous": before}})
    kubectl("-n", NAMESPACE, "patch", "secret", "dtj-operator-master-key", "-p", keys)
    rolled = helm("rollback", "dtj", "-n", NAMESPACE, kubeconfig=plane.kubeconfig)
    assert rolled.returncode == 0, rolled.stderr
    assert master_key(kubectl) == new
    assert master_key(kubectl, "previous") == before


def test_crd_is_served(notes: str, kubectl: Kubectl) -> None:
    done = kubectl("wait", CRD, "--for=condition=Established", "--timeout=60s")
    assert done.returncode == 0, done.stderr


def test_editors_of_a_namespace_may_submit_jobs_and_viewers_may_read(
    notes: str, plane: ControlPlane, kubectl: Kubectl
) -> None:
    kubectl("wait", CRD, "--for=condition=Established", "--timeout=60s")
    kubectl("create", "namespace", "team")
    logins = {role: str(plane.kubeconfig_for(f"a-{role}", [])) for role in ("edit", "view")}
    for role in logins:
        kubectl("-n", "team", "create", "rolebinding", role, f"--clusterrole={role}", f"--user=a-{role}")
    # A controller aggregates the chart's roles into the cluster's.
    wait_until(
        "an editor may submit",
        lambda: kubectl("apply", "-f", "-", stdin=json.dumps(JOB), login=logins["edit"]).returncode == 0,
    )
    wait_until(
        "a viewer may read", lambda: kubectl("-n", "team", "get", "dtj", "j", login=logins["view"]).returncode == 0
    )
    refused = kubectl("-n", "team", "delete", "dtj", "j", login=logins["view"])
    assert "forbidden" in refused.stderr
    status = '{"status": {"phase": "Complete"}}'
    forged = kubectl(
        "-n", "team", "patch", "dtj", "j", "--subresource=status", "--type=merge", "-p", status, login=logins["edit"]
    )
    assert "forbidden" in forged.stderr, "a status is the operator's to write"


def test_uninstall_keeps_jobs_and_key_for_the_next_install(
    notes: str, plane: ControlPlane, install: Callable[..., str], kubectl: Kubectl
) -> None:
    before = master_key(kubectl)
    uninstalled = helm("uninstall", "dtj", "-n", NAMESPACE, kubeconfig=plane.kubeconfig)
    assert uninstalled.returncode == 0, uninstalled.stderr
    assert kubectl("-n", NAMESPACE, "get", "deployment", "dtj-operator").returncode != 0
    assert kubectl("get", CRD).returncode == 0
    install()
    assert master_key(kubectl) == before


def test_service_account_has_the_rights_of_the_table_and_cannot_get_secrets(
    notes: str, plane: ControlPlane, kubectl: Kubectl
) -> None:
    login = str(plane.kubeconfig_for_service_account(NAMESPACE, "dtj-operator"))

    def may(verb: str, resource: str) -> bool:
        return kubectl("auth", "can-i", verb, resource, "-n", "default", login=login).stdout.strip() == "yes"

    assert may("patch", "statefulsets.apps")
    assert may("watch", f"{names.PLURAL}.{names.GROUP}")
    assert not may("get", "secrets")
    assert not may("list", "secrets")
    assert not may("delete", "nodes")
    assert not may("update", f"customresourcedefinitions.apiextensions.k8s.io/{Path(CRD).name}")


def test_service_account_can_read_a_secret_by_an_empty_patch(notes: str, plane: ControlPlane, kubectl: Kubectl) -> None:
    """docs/decisions/0002 states this limit of RBAC.

    Without it `patch` would be no right to write by server-side apply.
    """
    assert (
        kubectl("-n", "default", "create", "secret", "generic", "theirs", "--from-literal=password=hunter2").returncode
        == 0
    )
    login = str(plane.kubeconfig_for_service_account(NAMESPACE, "dtj-operator"))
    assert "forbidden" in kubectl("-n", "default", "get", "secret", "theirs", login=login).stderr

    async def patched() -> Any:
        account = Login(login)
        await account.load()
        client = Client(account, lambda *_: None)
        try:
            return await client.merge(SECRET, "default", "theirs", {})
        finally:
            await client.close()

    assert base64.b64decode(asyncio.run(patched())["data"]["password"]) == b"hunter2"
