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


def test_policy_of_the_page_selects_by_the_label_of_the_planner() -> None:
    [text] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    policy = yaml.safe_load(text)
    assert policy["spec"]["podSelector"] == {"matchLabels": {names.LABEL_JOB: "digits"}}
    assert policy["spec"]["ingress"][0]["ports"], "a rule without ports would open torch's own"
