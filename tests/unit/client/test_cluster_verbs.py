"""`dtj submit | get | wait | delete` with a real API server.

There is no kubelet, so the tests write the status.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.cluster import wait
from hack.cluster.controlplane import ControlPlane
from hack.cluster.shell import ProvisionError
from tests.unit.client.support import JOBS, job_yaml, set_status

pytestmark = pytest.mark.controlplane
NAME = "distributedtrainingjob.training.dtj.dev/count"


def test_verbs_without_the_crd_suggest_to_install_the_chart(bare: ControlPlane, dtj: Any, job_file: Path) -> None:
    for verb in (["get"], ["submit", "-f", job_file], ["wait", "count"], ["logs", "count"], ["delete", "count"]):
        code, _, err = dtj(*verb)
        assert code == 1
        assert "does not serve DistributedTrainingJob; install the chart: helm install dtj " in err
        assert err.count("\n") == 1


def test_submit_prints_created_then_unchanged_then_configured(cluster: ControlPlane, dtj: Any, job_file: Path) -> None:
    assert dtj("submit", "-f", job_file) == (0, f"{NAME} created\n", "")
    assert dtj("submit", "-f", job_file) == (0, f"{NAME} unchanged\n", "")
    job_file.write_text(job_yaml(more="  activeDeadlineSeconds: 60"))
    assert dtj("submit", "-f", job_file) == (0, f"{NAME} configured\n", "")
    assert dtj("submit", "-f", job_file, "-o", "name") == (0, f"{NAME}\n", "")


def test_submit_rejects_a_bad_file_before_any_job_is_created(cluster: ControlPlane, dtj: Any, job_file: Path) -> None:
    for bad, message in (
        (job_yaml(replicas=0), "spec.replicas: "),
        (job_yaml(more="  replica: 2"), "spec.replica: unknown field"),
    ):
        job_file.write_text(job_yaml().replace("{name: count}", "{name: first}") + "---\n" + bad)
        code, _, err = dtj("submit", "-f", job_file)
        assert code == 2
        assert err.startswith(f"dtj: {job_file}: ")
        assert message in err
    assert not cluster.request("GET", JOBS)["items"], "the first job of the file was not created either"


def test_missing_namespace_or_job_is_reported(cluster: ControlPlane, dtj: Any, job_file: Path) -> None:
    code, _, err = dtj("submit", job_file, "-n", "nowhere")
    assert code == 1
    assert 'namespaces "nowhere" not found' in err
    assert "`kubectl get namespaces`" in err
    code, _, err = dtj("get", "none")
    assert code == 1
    assert "not found in namespace default" in err


def test_conflicting_namespaces_in_file_and_flags_are_rejected(cluster: ControlPlane, dtj: Any, job_file: Path) -> None:
    job_file.write_text(job_yaml().replace("{name: count}", "{name: count, namespace: default}"))
    code, _, err = dtj("submit", "-f", job_file, "-n", "other")
    assert (code, err) == (2, "dtj: metadata.namespace is default, -n other: omit one of the two\n")


def test_get_prints_the_columns_of_the_crd(cluster: ControlPlane, dtj: Any, job_file: Path) -> None:
    assert dtj("get") == (0, "", "No resources found in default namespace.\n")
    dtj("submit", "-f", job_file)
    set_status(cluster, "Running", ready="3/3", progress={"step": 130}, restarts={"total": 1}, attempt=2)
    code, out, _ = dtj("get", "count")
    head, row = (line.split() for line in out.splitlines())
    assert code == 0
    assert head[:2] == ["NAME", "PHASE"]
    assert row[:3] == ["count", "Running", "3/3"]
    assert "130" in row
    _, out, _ = dtj("get", "-o", "wide", "-A")
    assert out.split()[0] == "NAMESPACE"
    assert "ATTEMPT" in out
    assert dtj("get", "-o", "name")[1] == f"{NAME}\n"
    assert json.loads(dtj("get", "count", "-o", "json")[1])["spec"]["replicas"] == 3
    assert yaml.safe_load(dtj("get", "-o", "yaml")[1])["items"][0]["metadata"]["name"] == "count"


def test_wait_returns_when_the_condition_holds(cluster: ControlPlane, dtj: Any, job_file: Path) -> None:
    dtj("submit", "-f", job_file)
    threading.Timer(0.5, set_status, (cluster, "Complete")).start()
    assert dtj("wait", "count", "--for", "complete", "--timeout", "60s") == (0, f"{NAME} condition met\n", "")
    assert dtj("wait", "count", "--for=condition=Complete")[0] == 0


def test_wait_ends_when_the_condition_is_no_longer_possible(cluster: ControlPlane, dtj: Any, job_file: Path) -> None:
    dtj("submit", "-f", job_file)
    threading.Timer(0.5, set_status, (cluster, "Failed")).start()
    code, _, err = dtj("wait", "count", "--timeout", "60s")
    assert (code, err) == (1, f"{NAME} is Failed: RestartBudgetSpent: rank 1 was ended by SIGSEGV\n")
    assert dtj("wait", "count", "--for", "Failed")[0] == 0


def test_wait_times_out_with_124_and_notices_a_deletion(cluster: ControlPlane, dtj: Any, job_file: Path) -> None:
    dtj("submit", "-f", job_file)
    code, _, err = dtj("wait", "count", "--timeout", "1s")
    assert code == 124
    assert "is not Complete after 1s; `dtj get count -n default -o wide`" in err
    threading.Timer(0.5, cluster.request, ("DELETE", f"{JOBS}/count")).start()
    assert dtj("wait", "count", "--timeout", "60s")[0] == 1
    assert dtj("wait", "count")[0] == 1


def test_wait_for_an_unserved_job_suggests_to_check_the_operator(
    cluster: ControlPlane, dtj: Any, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtj("submit", job_file)
    assert "check that the operator is running" not in dtj("wait", "count", "--timeout", "1s")[2]
    monkeypatch.setattr(wait, "UNSERVED_SECONDS", 0.0)
    code, _, err = dtj("wait", "count", "--timeout", "1s")
    assert code == 124
    assert (
        err.count("check that the operator is running: kubectl get pods -A -l app.kubernetes.io/name=dtj-operator") == 1
    )


def test_delete_waits_until_job_and_pods_are_gone(cluster: ControlPlane, dtj: Any, job_file: Path) -> None:
    dtj("submit", "-f", job_file)
    pods = "/api/v1/namespaces/default/pods"
    labels = {"training.dtj.dev/job-name": "count", "apps.kubernetes.io/pod-index": "0"}
    spec = {"containers": [{"name": "trainer", "image": "x"}], "terminationGracePeriodSeconds": 0}
    cluster.request("POST", pods, {"metadata": {"name": "count-0", "labels": labels}, "spec": spec})
    code, _, err = dtj("delete", "count", "--timeout", "1s")
    assert code == 124
    assert "kubectl get pods -l training.dtj.dev/job-name=count" in err
    cluster.request("DELETE", f"{pods}/count-0")
    dtj("submit", "-f", job_file)
    assert dtj("delete", "count") == (
        0,
        'distributedtrainingjob.training.dtj.dev "count" deleted from default namespace\n',
        "",
    )
    with pytest.raises(ProvisionError, match="404"):
        cluster.request("GET", f"{JOBS}/count")
    code, _, err = dtj("delete", "count")
    assert code == 1
    assert "not found" in err


def test_denied_request_is_reported_in_one_line(cluster: ControlPlane, dtj: Any) -> None:
    code, _, err = dtj("get", "--kubeconfig", cluster.kubeconfig_for("jane", ["staff"]))
    assert code == 1
    assert 'User "jane" cannot list resource' in err
    assert "ask the cluster's administrator for the ClusterRole edit in that namespace" in err
    assert err.count("\n") == 1


def test_unreachable_cluster_is_reported_in_one_line(dtj: Any, tmp_path: Path, bare: ControlPlane) -> None:
    nowhere = tmp_path / "nowhere"
    nowhere.write_text(bare.kubeconfig.read_text().replace(bare.url, "https://127.0.0.1:1"))
    for flags, message in (
        (["--kubeconfig", nowhere], "no answer from https://127.0.0.1:1 "),
        (["--kubeconfig", tmp_path / "none"], "no usable kubeconfig"),
        (["--context", "moon"], "--context moon: not in the kubeconfig"),
    ):
        code, _, err = dtj("get", *flags)
        assert code in (1, 2)
        assert message in err
        assert err.count("\n") == 1
