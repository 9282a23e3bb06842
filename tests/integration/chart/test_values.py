"""Each flag of the operator has a value of the chart, and overrides reach the objects."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj_core.plan.node_signs import SickNodeSettings
from dtj_operator import rbac, settings
from hack.cluster.versions import KUBERNETES
from tests.integration.chart.kit import (
    CHART,
    NAMESPACE,
    Object,
    arguments_of,
    helm,
    hooks,
    of_kind,
    pod,
    render,
    rights,
)
from tests.integration.chart.pss import violations

# Flags that make no sense in a pod of the cluster.
OUTSIDE = {"kubeconfig", "context"}


def flags(chosen: Object | None = None) -> list[str]:
    arguments: list[str] = pod(render(chosen))["containers"][0]["args"]
    return arguments


def test_every_flag_of_the_operator_is_set_by_a_value() -> None:
    given = {
        argument.removeprefix("--").partition("=")[0]
        for argument in flags(
            {
                "watchNamespaces": ["a"],
                "openshift": True,
                "metrics.authentication.enabled": True,
                "agent.pullSecrets": ["registry"],
            }
        )
    }
    assert given == set(settings.FLAGS) - OUTSIDE


@pytest.mark.parametrize(
    ("chosen", "field", "expected"),
    [
        ({"workers": 3}, "workers", 3),
        ({"resyncSeconds": 60}, "resync_seconds", 60),
        ({"crdWaitSeconds": 0}, "crd_wait_seconds", 0),
        ({"log.format": "text"}, "log_format", "text"),
        ({"log.level": "debug"}, "log_level", "debug"),
        ({"log.level": "debug", "extraArgs": ["--log-level=error"]}, "log_level", "error"),
    ],
    ids=str,
)
def test_value_reaches_the_operator(chosen: Object, field: str, expected: Any, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"k" * 64)
    arguments = [a.replace("/etc/dtj/master-key/key", str(key)) for a in flags(chosen)]
    assert getattr(settings.parse(arguments, {}), field) == expected


def test_agent_is_delivered_as_before_with_the_values_of_an_older_chart() -> None:
    assert "--agent-delivery=init-container" in flags({"agent.delivery": None}), "helm upgrade --reuse-values"


def sections(node: Object, default: Any, path: str = "") -> set[str]:
    """Returns the paths of the values' innermost objects whose fields the chart reads, as in the schema."""
    inner: set[str] = set()
    for name, field in node.get("properties", {}).items():
        value = default.get(name)
        if isinstance(value, dict) and (
            field.get("additionalProperties") is False or "monitor" in field.get("$ref", "")
        ):
            at = f"{path}.{name}".lstrip(".")
            inner |= sections(field, value, at) or {at}
    return inner


def test_values_of_an_older_chart_are_rejected_with_the_flag_that_helps() -> None:
    """`helm upgrade --reuse-values` takes the values of the release in place of the chart's defaults."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    helper = (CHART / "templates/_helpers.tpl").read_text().partition('"dtj-operator.checkValues"')[2]
    checked = re.findall(r'"([\w.]+)"', helper[: helper.index("-}}\n{{- $found")])
    assert set(checked) == sections(schema, defaults)
    for missing in ("sickNodes", "metrics.authentication", "tracking"):
        refused = helm("template", "dtj", str(CHART), "--kube-version", f"v{KUBERNETES}", "--set", f"{missing}=null")
        assert f"the values have no {missing}" in refused.stderr
        assert "write --reset-then-reuse-values" in refused.stderr


def test_images_as_volumes_are_rejected_where_kubernetes_is_too_old(tmp_path: Path) -> None:
    chosen = {"agent.delivery": "image-volume"}
    assert arguments_of(render(chosen), tmp_path).settings.agent_delivery == "image-volume"
    command = ["template", "dtj", str(CHART), "--set", "agent.delivery=image-volume", "--kube-version"]
    assert helm(*command, "v1.35.0").returncode == 0
    refused = helm(*command, "v1.34.9")
    assert "agent.delivery=image-volume needs Kubernetes 1.35 or later, and this is v1.34.9" in refused.stderr
    assert refused.returncode != 0


def test_agents_may_listen_on_ipv6_alone(tmp_path: Path) -> None:
    assert "--agent-listen-host=[::]" in flags({"agent.listenHost": "[::]"})


def test_environment_and_volumes_are_added_to_the_operators_own() -> None:
    spec = pod(
        render(
            {
                "extraEnv": [{"name": "A", "value": "b"}],
                "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
                "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
            }
        )
    )
    [container] = spec["containers"]
    assert container["env"] == [{"name": "A", "value": "b"}]
    assert [volume["name"] for volume in spec["volumes"]] == ["master-key", "tmp", "ca"]
    assert [mount["name"] for mount in container["volumeMounts"]] == ["master-key", "tmp", "ca"]


def test_common_labels_are_on_every_object_and_replace_none_of_the_charts() -> None:
    chosen = {"commonLabels": {"team": "ml", "app.kubernetes.io/name": "mine"}}
    documents = [d for d in render(chosen) if d["kind"] != "CustomResourceDefinition"]
    for document in documents:
        assert document["metadata"]["labels"]["team"] == "ml", document["kind"]
        assert document["metadata"]["labels"]["app.kubernetes.io/name"] == "dtj-operator"
    [deployment] = of_kind(documents, "Deployment")
    assert "team" not in deployment["spec"]["selector"]["matchLabels"], "a selector can't be changed by an upgrade"
    assert deployment["spec"]["template"]["metadata"]["labels"]["team"] == "ml"


EVERYTHING: Object = {
    "metrics.serviceMonitor.enabled": True,
    "metrics.podMonitor.enabled": True,
    "metrics.prometheusRule.enabled": True,
    "metrics.dashboard.enabled": True,
    "metrics.authentication.enabled": True,
    "networkPolicy.enabled": True,
    "kueue.enabled": True,
}


def test_common_annotations_are_on_every_object_and_replace_none_of_its_own() -> None:
    common = {"owner": "ml", "helm.sh/hook-delete-policy": "mine", "helm.sh/resource-policy": "delete"}
    chosen = {"commonAnnotations": common, "metrics.service.annotations": {"owner": "metrics"}}
    documents = [d for d in render(EVERYTHING | chosen) if d["kind"] != "CustomResourceDefinition"]
    assert len({d["kind"] for d in documents}) >= 14
    for document in [*documents, *hooks(chosen)]:
        owner = "metrics" if document["kind"] == "Service" else "ml"
        assert document["metadata"]["annotations"]["owner"] == owner, document["kind"]
    [key] = [s for s in of_kind(documents, "Secret") if s["type"] == "Opaque"]
    assert key["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep", "an uninstall would delete the key"
    kept = {d["metadata"]["annotations"]["helm.sh/hook-delete-policy"] for d in hooks(chosen)}
    assert kept == {"before-hook-creation,hook-succeeded"}


SIDECAR = {"name": "proxy", "image": "proxy:1"}


@pytest.mark.parametrize(
    ("chosen", "path", "expected"),
    [
        ({"deploymentAnnotations": {"a": "b"}}, "metadata.annotations", {"a": "b"}),
        ({"podAnnotations": {"a": "b"}}, "spec.template.metadata.annotations", {"a": "b"}),
        ({"revisionHistoryLimit": 2}, "spec.revisionHistoryLimit", 2),
        ({"extraEnvFrom": [{"secretRef": {"name": "s"}}]}, "CONTAINER.envFrom", [{"secretRef": {"name": "s"}}]),
        ({"livenessProbe.periodSeconds": 60}, "CONTAINER.livenessProbe.periodSeconds", 60),
        ({"readinessProbe.timeoutSeconds": 9}, "CONTAINER.readinessProbe.timeoutSeconds", 9),
        ({"extraContainers": [SIDECAR]}, "POD.containers.1", SIDECAR),
        ({"extraInitContainers": [SIDECAR]}, "POD.initContainers", [SIDECAR]),
        ({"extraPodSpec": {"dnsPolicy": "None", "hostAliases": []}}, "POD.dnsPolicy", "None"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_override_reaches_the_deployment(chosen: Object, path: str, expected: Any) -> None:
    [found] = of_kind(render(chosen), "Deployment")
    names = path.replace("CONTAINER", "POD.containers.0").replace("POD", "spec.template.spec").split(".")
    value: Any = found
    for name in names:
        value = value[int(name)] if isinstance(value, list) else value[name]
    assert value == expected


def test_disruption_budget_and_service_can_be_changed() -> None:
    documents = render({"podDisruptionBudget.maxUnavailable": "50%", "metrics.service.labels": {"scrape": "yes"}})
    assert of_kind(documents, "PodDisruptionBudget")[0]["spec"]["maxUnavailable"] == "50%"
    assert of_kind(documents, "Service")[0]["metadata"]["labels"]["scrape"] == "yes"


@pytest.mark.parametrize(
    ("value", "kind", "endpoints"),
    [
        ("serviceMonitor", "ServiceMonitor", "endpoints"),
        ("podMonitor", "PodMonitor", "podMetricsEndpoints"),
    ],
)
def test_monitor_takes_relabelings_and_a_timeout(value: str, kind: str, endpoints: str) -> None:
    given = {
        "scrapeTimeout": "5s",
        "relabelings": [{"action": "labeldrop", "regex": "pod"}],
        "metricRelabelings": [{"action": "drop", "regex": "x"}],
    }
    chosen = {f"metrics.{value}.{name}": each for name, each in given.items()}
    documents = render(EVERYTHING | chosen | {f"metrics.{value}.annotations": {"a": "b"}})
    [monitor] = of_kind(documents, kind)
    [endpoint] = monitor["spec"][endpoints]
    assert given.items() <= endpoint.items()
    assert monitor["metadata"]["annotations"] == {"a": "b"}


def test_single_alerts_can_be_left_out() -> None:
    def alerts(chosen: Object) -> set[str]:
        [rule] = of_kind(render(EVERYTHING | chosen), "PrometheusRule")
        return {each["alert"] for group in rule["spec"]["groups"] for each in group["rules"]}

    assert alerts({}) - alerts({"metrics.prometheusRule.disabled": ["DtjNodesAvoided"]}) == {"DtjNodesAvoided"}


def test_extra_objects_are_installed_with_their_templates_rendered() -> None:
    extra = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-mine"}}
    assert [d["metadata"]["name"] for d in of_kind(render({"extraObjects": [extra]}), "ConfigMap")] == ["dtj-mine"]


def test_network_policy_admits_only_those_who_may_scrape() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    documents = render({"networkPolicy.enabled": True, "networkPolicy.ingressFrom": [peer], "metrics.port": 9090})
    [policy] = of_kind(documents, "NetworkPolicy")
    assert policy["spec"]["ingress"] == [{"ports": [{"port": 9090, "protocol": "TCP"}], "from": [peer]}]
    assert policy["spec"]["policyTypes"] == ["Ingress"], "the operator reaches agents and API server anywhere"
    [deployment] = of_kind(documents, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    [open_to_all] = of_kind(render({"networkPolicy.enabled": True}), "NetworkPolicy")
    assert "from" not in open_to_all["spec"]["ingress"][0]


def test_job_policies_admit_the_operator_and_the_peers_of_the_values(tmp_path: Path) -> None:
    peer = {"namespaceSelector": {"matchLabels": {"team": "ml"}}}
    documents = render({"jobNetworkPolicy.ingressFrom": [peer]})
    peers = arguments_of(documents, tmp_path).settings.network_peers
    assert peers is not None
    operator, others = peers[0], peers[1:]
    assert others == (peer,)
    assert operator["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}
    [deployment] = of_kind(documents, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert operator["podSelector"]["matchLabels"].items() <= labels.items()


def test_job_policies_can_be_turned_off_with_the_right_to_write_them(tmp_path: Path) -> None:
    documents = render({"jobNetworkPolicy.enabled": False})
    assert arguments_of(documents, tmp_path).settings.network_peers is None
    granted = {right for role in of_kind(documents, "ClusterRole") for right in rights(role["rules"])}
    assert not [right for right in granted if right[1] == "networkpolicies"]


def test_metrics_behind_authentication_bring_https_and_the_rights_to_review() -> None:
    chosen = {"metrics.authentication.enabled": True, "metrics.serviceMonitor.enabled": True}
    documents = render(chosen | {"watchNamespaces": ["team"]})
    roles = {role["metadata"]["name"].rpartition(":")[2]: role for role in of_kind(documents, "ClusterRole")}
    assert roles["metrics-auth"]["rules"] == rbac.rules(rbac.METRICS_RULES)
    assert roles["metrics-reader"]["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    [bound] = [b for b in of_kind(documents, "ClusterRoleBinding") if b["roleRef"]["name"].endswith(":metrics-auth")]
    assert bound["subjects"] == [{"kind": "ServiceAccount", "name": "dtj-operator", "namespace": NAMESPACE}]
    spec = pod(documents)
    [container] = spec["containers"]
    assert {container[probe]["httpGet"]["scheme"] for probe in ("readinessProbe", "livenessProbe")} == {"HTTPS"}
    [endpoint] = of_kind(documents, "ServiceMonitor")[0]["spec"]["endpoints"]
    assert (endpoint["scheme"], "bearerTokenFile" in endpoint) == ("https", True)
    [secret] = [s for s in of_kind(documents, "Secret") if s["type"] == "kubernetes.io/tls"]
    [service] = of_kind(documents, "Service")
    assert endpoint["tlsConfig"]["serverName"] == f"{service['metadata']['name']}.{NAMESPACE}.svc"
    assert endpoint["tlsConfig"]["ca"]["secret"] == {"name": secret["metadata"]["name"], "key": "ca.crt"}
    [volume] = [v for v in spec["volumes"] if v["name"] == "metrics-tls"]
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    assert secret["data"]["ca.crt"] == secret["data"]["tls.crt"], "its own authority"


def test_metrics_without_authentication_bring_no_right_on_reviews() -> None:
    documents = render({"watchNamespaces": ["team"], "rbac.aggregate": False, "sickNodes.enabled": False})
    [role] = of_kind(documents, "ClusterRole")
    assert [rule["resources"] for rule in role["rules"]] == [["distributedtrainingruntimes"]]
    assert {secret["type"] for secret in of_kind(documents, "Secret")} == {"Opaque"}
    own = render({"metrics.authentication.enabled": True, "metrics.authentication.existingSecret": "mine"})
    assert {secret["type"] for secret in of_kind(own, "Secret")} == {"Opaque"}


def test_helm_test_runs_a_restricted_pod_that_no_selector_of_the_operator_matches() -> None:
    documents = hooks()
    [test] = of_kind(documents, "Pod")
    assert violations(test["spec"]) == []
    [deployment] = of_kind(render(), "Deployment")
    assert not deployment["spec"]["selector"]["matchLabels"].items() <= test["metadata"]["labels"].items()
    assert {d["kind"] for d in documents} == {"Pod", "Role", "RoleBinding", "ServiceAccount"}
    [role] = of_kind(documents, "Role")
    assert role["rules"] == [
        {
            "apiGroups": ["training.dtj.dev"],
            "resources": ["distributedtrainingjobs"],
            "verbs": ["get", "create", "delete"],
        }
    ]


def test_helm_test_finds_a_node_where_the_operator_does_and_where_its_job_is_sent() -> None:
    taint, spec = {"key": "gpu", "operator": "Exists"}, {"nodeSelector": {"pool": "gpu"}}
    [test] = of_kind(hooks({"tolerations": [taint], "nodeSelector": {"pool": "system"}, "test.spec": spec}), "Pod")
    assert (test["spec"]["tolerations"], test["spec"]["nodeSelector"]) == ([taint], {"pool": "system"})
    env = {entry["name"]: entry["value"] for entry in test["spec"]["containers"][0]["env"]}
    assert json.loads(env["JOB_SPEC"]) == spec


def test_helm_test_runs_its_job_where_the_operator_serves() -> None:
    documents = hooks({"watchNamespaces": ["team", "other"], "test.image": "torch:1"})
    assert [d["metadata"]["namespace"] for d in of_kind(documents, "Role")] == ["team"]
    [test] = of_kind(documents, "Pod")
    env = {entry["name"]: entry["value"] for entry in test["spec"]["containers"][0]["env"]}
    assert (test["metadata"]["namespace"], env["JOB_NAMESPACE"], env["JOB_IMAGE"]) == (NAMESPACE, "team", "torch:1")


def test_sick_nodes_of_the_chart_are_the_operators_own_defaults(tmp_path: Path) -> None:
    documents = render()
    assert arguments_of(documents, tmp_path).settings.sick_nodes == SickNodeSettings()
    [role] = [r for r in of_kind(documents, "ClusterRole") if r["metadata"]["name"].endswith(":nodes")]
    assert rights(role["rules"]) == rights(rbac.rules(rbac.NODE_RULES))
    [binding] = [b for b in of_kind(documents, "ClusterRoleBinding") if b["metadata"]["name"].endswith(":nodes")]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


def test_sick_nodes_follow_the_values_and_without_them_no_node_is_read(tmp_path: Path) -> None:
    chosen = {"sickNodes.conditions": ["Broken=False"], "sickNodes.cordon": False, "sickNodes.intervalSeconds": 5}
    found = arguments_of(render(chosen), tmp_path).settings.sick_nodes
    assert found is not None
    assert (found.conditions, found.cordon, found.interval_seconds) == (("Broken=False",), False, 5)
    documents = render({"sickNodes.enabled": False})
    assert arguments_of(documents, tmp_path).settings.sick_nodes is None
    granted = {right for role in of_kind(documents, "ClusterRole") for right in rights(role["rules"])}
    assert not [right for right in granted if right[1] == "nodes"]
