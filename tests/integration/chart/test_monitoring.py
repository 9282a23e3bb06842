"""Alerts and dashboard of the chart: valid queries, on metrics that exist, each with a page of the runbook."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from dtj_agent.pages import metrics as agent_metrics
from dtj_operator.metrics import Metrics
from tests.integration.chart.kit import CHART, ROOT, Object, of_kind, render

RULES = CHART / "files/alerts.yaml"
ON: Object = {
    "metrics.serviceMonitor.enabled": True,
    "metrics.podMonitor.enabled": True,
    "metrics.prometheusRule.enabled": True,
    "metrics.dashboard.enabled": True,
}
STATUS: Any = {
    "job": "j", "attempt": 1, "phase": "Running", "worldSize": 1, "members": [], "productiveSeconds": 1.0,
    "restarts": {"inPlace": 0, "pod": 0, "counted": 0}, "checkpoint": {"step": 1, "time": 1.0},
    "progress": {
        "step": 1, "optimizerSteps": 1, "totalSteps": 2, "loss": 1.0, "samplesPerSecond": 1.0, "time": 1.0,
        "metrics": {"m": 1.0},
    },
    "stragglers": [{"rank": 0, "ratio": 1.5}],
    "recoveries": [{"seconds": {"detect": 1.0}, "lostSteps": 1}],
}  # fmt: skip
PROMETHEUS_KINDS = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}


def alerts() -> list[Any]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def dashboard() -> Any:
    [found] = of_kind(render(ON), "ConfigMap")
    return json.loads(found["data"]["dtj.json"])


def queries() -> list[str]:
    panels = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]
    return [rule["expr"] for rule in alerts()] + panels


def test_nothing_of_prometheus_is_created_unless_it_is_enabled() -> None:
    kinds = {document["kind"] for document in render()}
    assert not kinds & {*PROMETHEUS_KINDS, "ConfigMap", "NetworkPolicy"}
    assert {document["kind"] for document in render(ON)} >= {*PROMETHEUS_KINDS, "ConfigMap"}


def test_rendered_rules_are_those_that_promtool_has_checked() -> None:
    [rule] = of_kind(render(ON), "PrometheusRule")
    rendered = [each for group in rule["spec"]["groups"] for each in group["rules"]]
    for each in rendered:
        each["annotations"].pop("runbook")
    assert rendered == alerts()


def test_every_metric_of_an_alert_or_panel_is_exported() -> None:
    exported = {name for family in Metrics("1").registry.collect() for name in _series(family.name, family.type)}
    text = agent_metrics.render(STATUS).decode()
    exported |= set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    used = {name for query in queries() for name in re.findall(r"\b((?:dtj|process)_[a-z_]+)\b", query)}
    assert used - exported == set()
    assert len(used) > 20


def _series(name: str, kind: str) -> set[str]:
    by_kind = {"counter": {"_total"}, "histogram": {"_bucket", "_sum", "_count"}}
    return {name + suffix for suffix in by_kind.get(kind, {""})}


@pytest.mark.parametrize("address", ["", "https://docs.example.org/runbook"])
def test_every_alert_names_its_page_in_the_runbook(address: str) -> None:
    page = (ROOT / "docs/runbook.md").read_text()
    anchors = {heading.lower() for heading in re.findall(r"^### (\S+)$", page, re.MULTILINE)}
    [rule] = of_kind(render(ON | {"metrics.prometheusRule.runbookUrl": address}), "PrometheusRule")
    for alert in (each for group in rule["spec"]["groups"] for each in group["rules"]):
        named = alert["annotations"]["runbook_url" if address else "runbook"]
        place, _, anchor = named.partition("#")
        assert place == (address or "docs/runbook.md")
        assert anchor in anchors, alert["alert"]
        assert alert["annotations"].keys() >= {"summary", "description"}
        assert alert["labels"]["severity"] in ("info", "warning", "critical")


def test_monitors_select_the_operators_service_and_the_jobs_pods() -> None:
    documents = render(ON | {"watchNamespaces": ["team"], "metrics.podMonitor.labels": {"release": "p"}})
    [service], [monitor] = of_kind(documents, "Service"), of_kind(documents, "ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    [pods] = of_kind(documents, "PodMonitor")
    assert pods["metadata"]["labels"]["release"] == "p"
    assert pods["spec"]["namespaceSelector"] == {"matchNames": ["team"]}
    assert pods["spec"]["podMetricsEndpoints"][0]["honorLabels"] is True


def test_dashboard_has_panels_that_do_not_overlap_and_a_data_source_to_choose() -> None:
    found = dashboard()
    panels = found["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for each in (panel["gridPos"] for panel in panels)
        for x in range(each["x"], each["x"] + each["w"])
        for y in range(each["y"], each["y"] + each["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23
    names = {variable["name"] for variable in found["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]+)\}?", json.dumps(panels)))
    assert used <= names
