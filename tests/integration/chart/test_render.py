"""The rendered chart, without a cluster."""

from __future__ import annotations

import base64
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj_contract import names
from dtj_operator import rbac, settings
from hack.cluster.versions import KUBERNETES
from tests.integration.chart import scc
from tests.integration.chart.kit import (
    CHART,
    NAMESPACE,
    ROOT,
    Object,
    arguments_of,
    helm,
    lease_roles,
    of_kind,
    pod,
    render,
    render_text,
    rights,
    values,
)
from tests.integration.chart.pss import violations

CRD_NAME = f"{names.PLURAL}.{names.GROUP}"
VERSION = (ROOT / "VERSION").read_text().strip()
CRD = ROOT / "crds" / f"{names.GROUP}_{names.PLURAL}.yaml"
RUNTIME_CRD = ROOT / "crds" / f"{names.GROUP}_{names.RUNTIME_PLURAL}.yaml"

COMBINATIONS: dict[str, Object] = {
    "defaults": {},
    "namespaced": {"watchNamespaces": ["team-a", "team-b"]},
    "no CRD, own secret": {"crds.enabled": False, "masterKey.existingSecret": "mine"},
    "image by digest": {"image": {"registry": "ghcr.io/x", "repository": "op", "digest": "sha256:" + "a" * 64}},
    "scheduling": {
        "nodeSelector": {"a": "b"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-cluster-critical",
        "imagePullSecrets": [{"name": "pull"}],
        "podAnnotations": {"x": "y"},
        "podLabels": {"team": "ml"},
        "resources": {"limits": {"memory": "1Gi", "cpu": 1}},
    },
    "nothing extra": {
        "rbac": {"create": False, "aggregate": False},
        "serviceAccount": {"create": False, "name": "given"},
        "metrics": {"service": {"enabled": False}, "port": 9090},
        "extraArgs": ["--log-level=debug", "--workers=2"],
    },
}


@pytest.fixture(params=COMBINATIONS)
def documents(request: pytest.FixtureRequest) -> list[Object]:
    return render(COMBINATIONS[request.param])


def test_helm_lint_reports_nothing() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


def test_operator_pod_meets_the_restricted_standard(documents: list[Object]) -> None:
    assert violations(pod(documents)) == []


def test_every_object_has_name_labels_and_namespace(documents: list[Object]) -> None:
    seen = [(d["kind"], d["metadata"].get("namespace"), d["metadata"]["name"]) for d in documents]
    assert len(seen) == len(set(seen))
    for document in documents:
        if document["kind"] != "CustomResourceDefinition":
            assert document["metadata"]["labels"]["app.kubernetes.io/name"] == "dtj-operator"
        if document["kind"] in ("Deployment", "Secret", "Service", "ServiceAccount"):
            assert document["metadata"]["namespace"] == NAMESPACE


def test_operator_accepts_its_arguments(documents: list[Object], tmp_path: Path) -> None:
    [container] = pod(documents)["containers"]
    options = arguments_of(documents, tmp_path)
    assert options.settings.master_key == b"k" * 64
    assert options.settings.agent_image == container["image"], "the agent comes from the operator's own image"
    assert options.metrics_port == container["ports"][0]["containerPort"]
    namespaces = {r["metadata"]["namespace"] for r in of_kind(documents, "Role") if r not in lease_roles(documents)}
    assert set(options.namespaces) == namespaces


@pytest.mark.parametrize(
    ("chosen", "resources"),
    [
        ({}, {"cpu": "100m", "memory": "64Mi"}),
        ({"agent.resources.memory": "1Gi"}, {"cpu": "100m", "memory": "1Gi"}),
        (
            {"agent.resources": {"cpu": 0.5, "memory": None, "ephemeral-storage": "1G"}},
            {"cpu": "0.5", "ephemeral-storage": "1G"},
        ),
        ({"agent.resources": None}, {}),
    ],
    ids=str,
)
def test_agent_resources_reach_the_operator(chosen: Object, resources: Object, tmp_path: Path) -> None:
    [container] = pod(render(chosen))["containers"]
    [flag] = [argument for argument in container["args"] if argument.startswith("--agent-resources=")]
    assert settings.resources(flag.partition("=")[2]) == resources


def test_cluster_role_is_exactly_the_operators_rbac_table() -> None:
    [role] = [r for r in of_kind(render(), "ClusterRole") if r["metadata"]["name"] == "dtj-system:dtj-operator"]
    assert rights(role["rules"]) == rights(rbac.rules())


def test_named_namespaces_get_the_same_rights_and_no_others_do() -> None:
    chosen = {"watchNamespaces": ["team-a", "team-b"], "rbac.aggregate": False}
    runtimes, nodes = of_kind(render(chosen), "ClusterRole")
    assert rights(runtimes["rules"]) == rights(rbac.rules(rbac.RUNTIME_RULES)), "runtimes have no namespace"
    assert rights(nodes["rules"]) == rights(rbac.rules(rbac.NODE_RULES)), "nor have nodes"
    documents = render(chosen | {"rbac.runtimes": False, "sickNodes.enabled": False})
    assert of_kind(documents, "ClusterRole") + of_kind(documents, "ClusterRoleBinding") == []
    roles = [r for r in of_kind(documents, "Role") if r not in lease_roles(documents)]
    assert [r["metadata"]["namespace"] for r in roles] == ["team-a", "team-b"]
    assert all(rights(r["rules"]) == rights(rbac.rules()) for r in roles)
    for binding in of_kind(documents, "RoleBinding"):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "dtj-operator", "namespace": NAMESPACE}]


def test_no_rule_has_a_wildcard_or_reads_secrets() -> None:
    for role in of_kind(render(), "ClusterRole"):
        granted = rights(role["rules"])
        assert not [right for right in granted if "*" in right]
        assert not granted & {("", "secrets", verb) for verb in ("get", "list", "watch")}


def test_viewers_read_jobs_and_editors_write_them() -> None:
    roles = {r["metadata"]["name"]: r for r in of_kind(render(), "ClusterRole")}
    aggregate = "rbac.authorization.k8s.io/aggregate-to-"
    viewer, editor = roles["dtj-system:dtj-operator:viewer"], roles["dtj-system:dtj-operator:editor"]
    assert viewer["metadata"]["labels"][aggregate + "view"] == "true"
    assert {editor["metadata"]["labels"][aggregate + to] for to in ("edit", "admin")} == {"true"}
    assert {verb for _, _, verb in rights(viewer["rules"])} == {"get", "list", "watch"}
    assert (names.GROUP, names.PLURAL + "/status", "patch") not in rights(editor["rules"])


def test_crd_is_the_generated_one() -> None:
    assert (CHART / "files/crd.yaml").read_bytes() == CRD.read_bytes()
    assert (CHART / "files/crd-runtimes.yaml").read_bytes() == RUNTIME_CRD.read_bytes()
    found = of_kind(render(), "CustomResourceDefinition")
    assert len(found) == 2
    for crd, path in zip(found, (CRD, RUNTIME_CRD), strict=True):
        assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        assert crd == yaml.safe_load(path.read_text())


def test_crd_can_be_omitted_or_deleted_by_the_uninstall() -> None:
    assert CRD.read_text().strip() in render_text({"crds.keep": False}), "byte for byte"
    assert of_kind(render({"crds.enabled": False}), "CustomResourceDefinition") == []


def test_master_key_is_the_only_secret_and_appears_nowhere_else() -> None:
    text = render_text({})
    [secret] = of_kind([d for d in yaml.safe_load_all(text) if d], "Secret")
    assert secret["data"].keys() == {"key"}
    assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    key = base64.b64decode(secret["data"]["key"]).decode()
    assert len(key) == 64
    assert key not in text
    assert text.count(secret["data"]["key"]) == 1


def test_existing_secret_is_mounted_and_none_is_created() -> None:
    documents = render({"masterKey.existingSecret": "mine"})
    assert of_kind(documents, "Secret") == []
    [volume] = [v for v in pod(documents)["volumes"] if "secret" in v]
    assert volume["secret"]["secretName"] == "mine"


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ({}, f"dtj-operator:{VERSION}"),
        ({"registry": "localhost:5001", "tag": "abc"}, "localhost:5001/dtj-operator:abc"),
        ({"tag": "abc", "digest": "sha256:" + "0" * 64}, "dtj-operator@sha256:" + "0" * 64),
    ],
)
def test_image_reference_is_assembled(image: Object, expected: str) -> None:
    assert pod(render({f"image.{k}": v for k, v in image.items()}))["containers"][0]["image"] == expected


RELEASES = ("dtj", "operator", "op", "dtj-operator", "a", "a-dtj-operator", "d", "x" * 53, "x" * 52)


@pytest.mark.parametrize(
    ("release", "name"),
    [
        ("dtj", "dtj-operator"),
        ("blue", "blue-dtj-operator"),
        ("operator", "operator-dtj-operator"),
        ("op", "op-dtj-operator"),
    ],
)
def test_names_follow_the_release(release: str, name: str) -> None:
    assert of_kind(render(release=release), "Deployment")[0]["metadata"]["name"] == name


@pytest.mark.parametrize("chosen", [{}, {"nameOverride": "trainings"}, {"nameOverride": "op-operator"}], ids=str)
def test_two_releases_share_no_object_but_the_crd(chosen: Object) -> None:
    seen: set[tuple[str, str]] = set()
    for release in RELEASES:
        mine = {(d["kind"], d["metadata"]["name"]) for d in render(chosen, release)} - {
            ("CustomResourceDefinition", CRD_NAME),
            ("CustomResourceDefinition", f"{names.RUNTIME_PLURAL}.{names.GROUP}"),
        }
        assert not mine & seen, release
        seen |= mine
        assert all(len(name) <= 63 for kind, name in mine if kind in ("Service", "Deployment"))


def test_two_releases_of_one_name_in_two_namespaces_share_no_cluster_role() -> None:
    def unbound(namespace: str) -> set[str]:
        documents = yaml.safe_load_all(render_text({}, namespace=namespace))
        return {d["metadata"]["name"] for d in documents if d and d["kind"] in ("ClusterRole", "ClusterRoleBinding")}

    assert len(unbound("team-a")) == 5
    assert not unbound("team-a") & unbound("team-b")


def test_two_releases_serving_one_namespace_share_no_role_in_it() -> None:
    names_of = [
        {
            (d["metadata"]["namespace"], d["metadata"]["name"])
            for d in yaml.safe_load_all(text)
            if d and d["kind"] in ("Role", "RoleBinding")
        }
        for text in (render_text({"watchNamespaces": ["team"]}, namespace=home) for home in ("home-a", "home-b"))
    ]
    assert names_of[0]
    assert not names_of[0] & names_of[1]


def test_names_can_be_overridden() -> None:
    named = render({"nameOverride": "trainings"}, "blue")
    [deployment] = of_kind(named, "Deployment")
    assert deployment["metadata"]["name"] == "blue-trainings"
    assert deployment["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"] == "trainings"
    full = render({"fullnameOverride": "the-operator"}, "blue")
    assert {d["metadata"]["name"] for d in full if d["kind"] in ("Deployment", "ServiceAccount")} == {"the-operator"}


SILENT = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ([], [30, 30]),
        ([{"key": "gpu", "operator": "Exists"}], [None, 30, 30]),
        ([{"key": SILENT[1], "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}], [5, 30]),
        ([{"operator": "Exists"}], [None]),
    ],
    ids=["none", "of something else", "an own time", "of everything"],
)
def test_operator_leaves_a_silent_node_after_half_a_minute(given: list[Object], seconds: list[Any]) -> None:
    tolerations = pod(render({"tolerations": given}))["tolerations"]
    assert [toleration.get("tolerationSeconds") for toleration in tolerations] == seconds
    assert tolerations[: len(given)] == given


def test_security_contexts_can_be_changed_by_field() -> None:
    chosen = {
        "podSecurityContext.runAsUser": 1234,
        "podSecurityContext.fsGroup": None,
        "securityContext.privileged": False,
    }
    spec = pod(render(chosen))
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1234,
        "runAsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert spec["containers"][0]["securityContext"]["privileged"] is False
    assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True


def test_openshift_restricted_scc_admits_the_operator_and_its_pods() -> None:
    assert scc.violations(pod(render()))
    spec = pod(render({"openshift": True}))
    assert scc.violations(spec) == []
    assert violations(spec) == []
    assert "--pod-user=cluster" in spec["containers"][0]["args"]
    assert "--pod-user=cluster" not in pod(render())["containers"][0]["args"]


def test_previous_master_key_is_mounted_where_the_operator_reads_it() -> None:
    spec = pod(render())
    [volume] = [v for v in spec["volumes"] if v["name"] == "master-key"]
    assert "items" not in volume["secret"], "whatever is in the Secret"
    [mount] = [m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "master-key"]
    assert f"--previous-master-key-file={mount['mountPath']}/previous" in spec["containers"][0]["args"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"replicas": "two"},
        {"leaderElection.leaseDuration": 10},
        {"leaderElection.claimsNamespace": ""},
        {"podDisruptionBudget.minAvailable": 1},
        {"image.tagg": "x"},
        {"image.pullPolicy": "Sometimes"},
        {"image.digest": "abc"},
        {"crds.install": True},
        {"crds.keep": "yes"},
        {"masterKey.value": "s3cret"},
        {"rbac.clusterAdmin": True},
        {"serviceAccount.labels": {}},
        {"metrics.serviceMonitor.endpoints": []},
        {"metrics.prometheusRule.runbookUrl": "docs#x"},
        {"networkPolicy.egress": []},
        {"test.image": 3},
        {"log.level": "loud"},
        {"workers": 0},
        {"extraEnv": {"A": "b"}},
        {"commonLabels": {"a": 1}},
        {"metrics.service.type": "LoadBalancer"},
        {"metrics.port": 80},
        {"resources.limit": {}},
        {"watchNamespaces": ["Team_A"]},
        {"watchNamespaces": "team-a"},
        {"extraArgs": ["log-level=debug"]},
        {"agent.resources": {"cpu": "a lot"}},
        {"imagePullSecrets": ["pull"]},
        {"extraPodSpec": {"volumes": []}},
        {"extraObjects": [{"kind": "ConfigMap"}]},
        {"livenessProbe.httpGet": {}},
        {"podDisruptionBudget.maxUnavailable": 0},
        {"metrics.prometheusRule.disabled": ["Other"]},
    ],
    ids=str,
)
def test_unknown_or_invalid_value_is_rejected_by_name(wrong: Object) -> None:
    done = helm("template", "dtj", str(CHART), "--kube-version", f"v{KUBERNETES}", *values(wrong))
    assert done.returncode != 0
    [path] = wrong
    assert path.rpartition(".")[2] in done.stderr or path.partition(".")[0] in done.stderr, done.stderr


def test_every_default_is_in_the_schema_and_every_schema_entry_has_a_default() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())

    def compare(node: Object, value: Object, path: str) -> None:
        if "properties" not in node:
            return
        assert node["additionalProperties"] is False, path
        known = node["properties"].keys() - {"global", "claims"}
        assert known == value.keys(), path
        for key in known:
            compare(node["properties"][key], value[key], f"{path}.{key}")

    compare(schema, defaults, "")


def test_chart_version_is_the_operators() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "operator/pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]


def test_queues_and_pod_groups_add_exactly_their_rights(tmp_path: Path) -> None:
    documents = render({"kueue.enabled": True, "podGroups.enabled": True, "watchNamespaces": ["team-a"]})
    wanted = rbac.RULES | rbac.KUEUE_RULES | rbac.POD_GROUP_RULES
    [role] = [r for r in of_kind(documents, "Role") if r not in lease_roles(documents)]
    assert rights(role["rules"]) == rights(rbac.rules(wanted))
    [cluster] = [r for r in of_kind(documents, "ClusterRole") if r["metadata"]["name"].endswith("-flavors")]
    assert rights(cluster["rules"]) == rights(rbac.rules(rbac.KUEUE_CLUSTER_RULES))
    assert arguments_of(documents, tmp_path).settings.kueue
    assert not arguments_of(render(), tmp_path).settings.kueue
