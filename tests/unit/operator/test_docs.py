"""docs/reference/operator.md names every flag, call, metric and right."""

from __future__ import annotations

import re
from pathlib import Path

from dtj_operator import rbac, settings
from dtj_operator.metrics import Metrics

RIGHTS = (
    rbac.RULES
    | rbac.RUNTIME_RULES
    | rbac.NODE_RULES
    | rbac.ELECTION_RULES
    | rbac.KUEUE_RULES
    | rbac.KUEUE_CLUSTER_RULES
    | rbac.POD_GROUP_RULES
)
PAGE = (Path(__file__).parents[3] / "docs/reference/operator.md").read_text()


def test_every_flag_is_on_the_page() -> None:
    assert [flag for flag in settings.FLAGS if f"`--{flag}`" not in PAGE] == []


def test_metrics_page_lists_exactly_the_metrics() -> None:
    short = re.compile(r"`_([a-z_]+)`")
    named = set(re.findall(r"`(dtj_[a-z_]+)`", PAGE)) | {"dtj_workqueue_" + name for name in short.findall(PAGE)}
    families = {f.name + ("_total" if f.type == "counter" else "") for f in Metrics("1").registry.collect()}
    assert named - {"dtj_operator"} == {name for name in families if name.startswith("dtj_")}


def test_every_right_is_on_the_page() -> None:
    for (_, resource), verbs in RIGHTS.items():
        row = next((line for line in PAGE.splitlines() if line.startswith(f"| `{resource}`")), None)
        assert row is not None, resource
        assert row.split("|")[2].strip() == ", ".join(verbs), resource
