"""The tracking servers of the chart: off by default, restricted, persistent, and open to the jobs' pods alone."""

from __future__ import annotations

import fnmatch
import json
from typing import Any

import pytest
import yaml

from dtj_contract import names
from hack.cluster.controlplane import ControlPlane
from hack.cluster.versions import KUBERNETES
from tests.integration.chart import scc
from tests.integration.chart.conftest import Kubectl
from tests.integration.chart.kit import CHART, NAMESPACE, Object, helm, of_kind, render, render_text, values
from tests.integration.chart.pss import violations

MLFLOW: Object = {"tracking.mlflow.enabled": True}
TENSORBOARD: Object = {"tracking.tensorboard.enabled": True, "tracking.tensorboard.existingClaim": "shared"}
BOTH = MLFLOW | TENSORBOARD
SERVERS = [("mlflow", 5000), ("tensorboard", 6006)]


def of_server(chosen: Object, component: str, release: str = "dtj") -> dict[str, Object]:
    """Returns a server's objects by kind."""
    named = f"dtj-operator-{component}" if release == "dtj" else f"{release}-dtj-operator-{component}"
    return {d["kind"]: d for d in render(chosen, release) if d["metadata"]["name"] == named}


def spec_of(objects: dict[str, Object]) -> Object:
    spec: Object = objects["Deployment"]["spec"]["template"]["spec"]
    return spec


def flags(chosen: Object, component: str) -> dict[str, str]:
    [container] = spec_of(of_server(chosen, component))["containers"]
    return {name: value for name, _, value in (argument.partition("=") for argument in container["args"])}


def test_no_server_is_installed_by_default() -> None:
    assert {d["metadata"]["name"] for d in render() if d["kind"] in ("Deployment", "PersistentVolumeClaim")} == {
        "dtj-operator"
    }


@pytest.mark.parametrize(("component", "port"), SERVERS)
def test_server_is_one_restricted_pod_with_probes_and_limits(component: str, port: int) -> None:
    objects = of_server(BOTH, component)
    assert objects["Deployment"]["spec"]["replicas"] == 1
    assert objects["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}
    spec = spec_of(objects)
    assert violations(spec) == []
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    [container] = spec["containers"]
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
    assert container["resources"].keys() == {"requests", "limits"}
    assert container["ports"] == [{"name": "http", "containerPort": port}]
    assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
    assert {"name": "HOME", "value": "/tmp"} in container["env"], "no image knows the user"


@pytest.mark.parametrize(("component", "port"), SERVERS)
def test_openshift_admits_the_server(component: str, port: int) -> None:
    assert scc.violations(spec_of(of_server(BOTH | {"openshift": True}, component))) == []


@pytest.mark.parametrize(("component", "port"), SERVERS)
def test_service_and_policy_select_the_server_and_nothing_else(component: str, port: int) -> None:
    documents = render(BOTH)
    objects = of_server(BOTH, component)
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
    chosen = {
        "Service": objects["Service"]["spec"]["selector"],
        "NetworkPolicy": objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        "Deployment": objects["Deployment"]["spec"]["selector"]["matchLabels"],
    }
    for kind, selector in chosen.items():
        matching = [d for d in of_kind(documents, "Deployment") if selector.items() <= pod_labels(d).items()]
        assert [d["metadata"]["name"] for d in matching] == [f"dtj-operator-{component}"], kind
    [operator] = [d for d in of_kind(documents, "Deployment") if d["metadata"]["name"] == "dtj-operator"]
    assert not operator["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert objects["Service"]["spec"]["ports"] == [{"name": "http", "port": port, "targetPort": "http"}]


def pod_labels(deployment: Object) -> dict[str, str]:
    found: dict[str, str] = deployment["spec"]["template"]["metadata"]["labels"]
    return found


def test_monitor_of_the_operator_does_not_select_the_servers_services() -> None:
    documents = render(BOTH | {"metrics.serviceMonitor.enabled": True})
    [monitor] = of_kind(documents, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    found = [d for d in of_kind(documents, "Service") if wanted.items() <= d["metadata"]["labels"].items()]
    assert [d["metadata"]["name"] for d in found] == ["dtj-operator-metrics"]


def test_pods_of_jobs_reach_mlflow_and_nobody_reaches_tensorboard_by_the_network() -> None:
    [rule] = of_server(BOTH, "mlflow")["NetworkPolicy"]["spec"]["ingress"]
    assert rule["ports"] == [{"port": 5000, "protocol": "TCP"}]
    [peer] = rule["from"]
    assert peer["namespaceSelector"] == {}
    assert peer["podSelector"] == {"matchExpressions": [{"key": names.LABEL_JOB, "operator": "Exists"}]}
    policy = of_server(BOTH, "tensorboard")["NetworkPolicy"]["spec"]
    assert (policy["policyTypes"], policy["ingress"]) == (["Ingress"], [])
    ingress = [{"podSelector": {"matchLabels": {"app": "ingress"}}}]
    [rule] = of_server(BOTH | {"tracking.tensorboard.ingressFrom": ingress}, "tensorboard")["NetworkPolicy"]["spec"][
        "ingress"
    ]
    assert rule == {"ports": [{"port": 6006, "protocol": "TCP"}], "from": ingress}


def test_runs_and_artifacts_are_on_a_claim_that_an_uninstall_keeps() -> None:
    objects = of_server(MLFLOW | {"tracking.mlflow.persistence.size": "1Ti"}, "mlflow")
    claim = objects["PersistentVolumeClaim"]
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert claim["spec"] == {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Ti"}}}
    assert volume(objects, "data") == {"claimName": claim["metadata"]["name"]}
    given = flags(MLFLOW, "mlflow")
    [mount] = [m for m in spec_of(objects)["containers"][0]["volumeMounts"] if m["name"] == "data"]
    assert given["--backend-store-uri"].startswith(f"sqlite:///{mount['mountPath']}/")
    assert given["--artifacts-destination"].startswith(f"{mount['mountPath']}/")


def test_mlflow_may_use_a_claim_that_exists_and_a_storage_class() -> None:
    objects = of_server(MLFLOW | {"tracking.mlflow.persistence.existingClaim": "mine"}, "mlflow")
    assert "PersistentVolumeClaim" not in objects
    assert volume(objects, "data") == {"claimName": "mine"}
    chosen = MLFLOW | {"tracking.mlflow.persistence.storageClassName": "fast"}
    assert of_server(chosen, "mlflow")["PersistentVolumeClaim"]["spec"]["storageClassName"] == "fast"


def volume(objects: dict[str, Object], name: str) -> Any:
    [found] = [v for v in spec_of(objects)["volumes"] if v["name"] == name]
    return found["persistentVolumeClaim"]


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost:5000", True),
        ("127.0.0.1:15000", True),
        ("dtj-operator-mlflow:5000", True),
        ("dtj-operator-mlflow.dtj-system:5000", True),
        ("dtj-operator-mlflow.dtj-system.svc.cluster.local:5000", True),
        ("mlflow.example.org", True),
        ("dtj-operator-mlflow.dtj-system.evil.example:5000", False),
        ("evil.example", False),
    ],
)
def test_mlflow_answers_to_its_own_names_alone(host: str, allowed: bool) -> None:
    """Matches as MLflow does: a rebound name of DNS in a browser must not reach the server."""
    hosts = flags(MLFLOW | {"tracking.mlflow.allowedHosts": ["mlflow.example.org"]}, "mlflow")["--allowed-hosts"]
    assert any(fnmatch.fnmatch(host, pattern) for pattern in hosts.split(",")) is allowed


def test_mlflow_listens_on_ipv6_where_the_agents_do() -> None:
    assert flags(MLFLOW, "mlflow")["--host"] == "0.0.0.0"
    assert flags(MLFLOW | {"agent.listenHost": "[::]"}, "mlflow")["--host"] == "::"


def test_tensorboard_reads_a_folder_of_the_jobs_claim_in_their_namespace() -> None:
    chosen = TENSORBOARD | {"tracking.tensorboard.namespace": "team", "tracking.tensorboard.path": "team/digits"}
    objects = of_server(chosen, "tensorboard")
    assert {d["metadata"]["namespace"] for d in objects.values()} == {"team"}, "a claim has a namespace"
    assert volume(objects, "logs") == {"claimName": "shared"}
    [mount] = [m for m in spec_of(objects)["containers"][0]["volumeMounts"] if m["name"] == "logs"]
    assert mount == {"name": "logs", "mountPath": "/logs", "subPath": "team/digits", "readOnly": True}
    assert flags(chosen, "tensorboard")["--logdir"] == mount["mountPath"]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"tracking.tensorboard.enabled": True}, "tracking.tensorboard.existingClaim: name the claim"),
        (TENSORBOARD | {"tracking.tensorboard.path": "/absolute"}, "path"),
        (MLFLOW | {"tracking.mlflow.image": ""}, "image"),
        (MLFLOW | {"tracking.mlflow.persistence.size": "much"}, "size"),
        (MLFLOW | {"tracking.mlflow.allowedHosts": ["a,b"]}, "allowedHosts"),
        ({"tracking.wandb.enabled": True}, "wandb"),
    ],
    ids=str,
)
def test_wrong_value_is_rejected_by_name(wrong: Object, named: str) -> None:
    done = helm("template", "dtj", str(CHART), "--kube-version", f"v{KUBERNETES}", *values(wrong))
    assert done.returncode != 0
    assert named in done.stderr


def test_more_flags_and_variables_reach_the_servers() -> None:
    chosen = BOTH | {
        "tracking.mlflow.extraArgs": ["--x-frame-options=DENY"],
        "tracking.mlflow.extraEnv": [{"name": "AWS_REGION", "value": "eu"}],
        "tracking.tensorboard.extraArgs": ["--samples_per_plugin=scalars=500"],
    }
    assert flags(chosen, "mlflow")["--x-frame-options"] == "DENY"
    assert {"name": "AWS_REGION", "value": "eu"} in spec_of(of_server(chosen, "mlflow"))["containers"][0]["env"]
    assert flags(chosen, "tensorboard")["--samples_per_plugin"] == "scalars=500"


def test_names_fit_and_two_releases_share_none() -> None:
    seen: set[tuple[str, str]] = set()
    for release in ("dtj", "blue", "x" * 40):
        mine = {(d["kind"], d["metadata"]["name"]) for d in render(BOTH, release) if d["kind"] == "Service"}
        assert all(len(name) <= 63 for _, name in mine)
        assert not mine & seen
        seen |= mine


def test_common_labels_and_annotations_are_on_the_servers_objects() -> None:
    chosen = BOTH | {"commonLabels": {"team": "ml"}, "commonAnnotations": {"owner": "ml"}}
    for component, _ in SERVERS:
        objects = of_server(chosen, component)
        assert len(objects) >= 3
        for document in objects.values():
            assert document["metadata"]["labels"]["team"] == "ml"
            assert document["metadata"]["annotations"]["owner"] == "ml"


@pytest.mark.parametrize(("lock", "package"), [("trainer", "mlflow-skinny"), ("mlflow", "mlflow")])
def test_mlflow_is_the_version_that_the_trainer_is_tested_with(lock: str, package: str) -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())["tracking"]
    version = defaults["mlflow"]["image"].rpartition(":v")[2]
    assert f"{package}=={version} " in (CHART.parents[1] / f"requirements/{lock}.lock").read_text()


@pytest.mark.controlplane
def test_api_server_accepts_the_servers_and_their_pods(kubectl: Kubectl) -> None:
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": component, "namespace": NAMESPACE},
            "spec": spec_of(of_server(BOTH, component)),
        }
        for component, _ in SERVERS
    ]
    # The namespace is restricted: it rejects a pod that is not.
    for text in (render_text(BOTH), *map(json.dumps, pods)):
        # Another test may have installed the chart under the same names.
        apply = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")
        done = kubectl(*apply, "-f", "-", stdin=text)
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr, done.stderr


@pytest.mark.controlplane
def test_notes_have_one_command_to_open_each_server(plane: ControlPlane) -> None:
    def commands(chosen: Object) -> list[str]:
        done = helm(
            "install", "dtj", str(CHART), "-n", NAMESPACE, "--dry-run", *values(chosen), kubeconfig=plane.kubeconfig
        )
        assert done.returncode == 0, done.stderr
        lines = done.stdout.partition("NOTES:")[2].splitlines()
        return [line.strip() for line in lines if line.startswith("  kubectl")]

    before, opened = commands({}), commands(BOTH | {"tracking.tensorboard.namespace": "team"})
    assert len(before) == 3
    assert opened == [
        *before,
        "kubectl -n dtj-system port-forward service/dtj-operator-mlflow 5000",
        "kubectl -n team port-forward service/dtj-operator-tensorboard 6006",
    ]
