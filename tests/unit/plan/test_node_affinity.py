"""Excluded nodes beside the affinity of the user."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_core.plan.node_affinity import REQUIRED, exclude_nodes

Object = dict[str, Any]


def not_in(*nodes: str) -> list[Object]:
    return [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]


def required(*terms: Object) -> Object:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


GPU = {"key": "gpu", "operator": "In", "values": ["h200"]}
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
NAMED = {"key": "metadata.name", "operator": "In", "values": ["w7"]}
PREFERRED = {
    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {"matchExpressions": [ZONE]}}]
}
POD_AFFINITY = {"podAntiAffinity": {REQUIRED: [{"topologyKey": "zone"}]}}

CASES: dict[str, tuple[Object | None, Object]] = {
    "none": (None, required({"matchFields": not_in("w1", "w2")})),
    "of other kinds": (
        POD_AFFINITY | {"nodeAffinity": PREFERRED},
        POD_AFFINITY | {"nodeAffinity": PREFERRED | required({"matchFields": not_in("w1", "w2")})["nodeAffinity"]},
    ),
    "one term": (
        required({"matchExpressions": [GPU]}),
        required({"matchExpressions": [GPU], "matchFields": not_in("w1", "w2")}),
    ),
    "alternatives": (
        required({"matchExpressions": [GPU]}, {"matchExpressions": [ZONE]}),
        required(
            {"matchExpressions": [GPU], "matchFields": not_in("w1", "w2")},
            {"matchExpressions": [ZONE], "matchFields": not_in("w1", "w2")},
        ),
    ),
    "a node by name": (required({"matchFields": [NAMED]}), required({"matchFields": [NAMED, *not_in("w1", "w2")]})),
    "an empty term, which matches nothing": (
        required({}, {"matchExpressions": [ZONE]}),
        required({}, {"matchExpressions": [ZONE], "matchFields": not_in("w1", "w2")}),
    ),
    "only an empty term": (required({}), required({})),
}


@pytest.mark.parametrize("case", CASES)
def test_every_alternative_of_the_user_excludes_the_nodes(case: str) -> None:
    given, expected = CASES[case]
    assert exclude_nodes(given, ("w2", "w1")) == expected


def test_users_affinity_without_excluded_nodes_is_unchanged() -> None:
    given = required({"matchExpressions": [GPU]})
    assert exclude_nodes(given, ()) == given
    exclude_nodes(given, ("w1",))
    assert given == required({"matchExpressions": [GPU]}), "the argument is not changed"
