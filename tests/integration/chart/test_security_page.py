"""docs/security.md states exactly the rights that the chart grants to the operator."""

from __future__ import annotations

import re

import yaml

from dtj_contract import names
from tests.integration.chart.kit import ROOT, of_kind, render

PAGE = (ROOT / "docs/security.md").read_text()


def test_table_of_rights_is_the_charts_role() -> None:
    rows = re.findall(r"^\| `([a-z0-9./]+)` \| ([a-z, ]+) \|", PAGE, re.MULTILINE)
    stated = {(resource, verb) for resource, verbs in rows for verb in verbs.split(", ")}
    [role] = [r for r in of_kind(render(), "ClusterRole") if r["metadata"]["name"] == "dtj-system:dtj-operator"]
    granted = {
        (f"{resource}.{group}" if group else resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert stated == granted
    assert not {verb for _, verb in granted} & {"bind", "escalate", "impersonate", "*"}


def test_policies_of_the_page_select_by_the_label_of_the_planner() -> None:
    """tests/e2e/test_network.py runs a job under the second one."""
    opening, egress = (yaml.safe_load(text)["spec"] for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
    assert opening["podSelector"] == {"matchLabels": {names.LABEL_JOB: "digits"}}
    assert opening["ingress"][0]["ports"], "a rule without ports would open torch's own"
    assert egress["podSelector"] == {"matchExpressions": [{"key": names.LABEL_JOB, "operator": "Exists"}]}
    assert egress["egress"][0] == {"to": [{"podSelector": egress["podSelector"]}]}
