"""The option --sick-nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dtj_core.plan.node_signs import SickNodeSettings
from dtj_operator.errors import OptionError
from dtj_operator.sick_node_option import read_sick_nodes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", None),
        ("{}", SickNodeSettings()),
        ('{"conditions": ["A=False"]}', SickNodeSettings(conditions=("A=False",))),
        ('{"labels": [], "taints": ["t=v"]}', SickNodeSettings(labels=(), taints=("t=v",))),
        (
            '{"cordon": false, "maxPercent": 5, "intervalSeconds": 1.5, "jobIntervalSeconds": 60}',
            SickNodeSettings(cordon=False, max_percent=5, interval_seconds=1.5, job_interval_seconds=60),
        ),
    ],
)
def test_each_key_is_a_setting_and_the_rest_is_the_default(text: str, expected: SickNodeSettings | None) -> None:
    assert read_sick_nodes(text) == expected


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ("no", "is no JSON"),
        ([], "is no JSON object"),
        ({"condition": ["A"]}, "unknown key condition; known are conditions, cordon"),
        ({"conditions": "A"}, "conditions is no list of names"),
        ({"labels": ["=v"]}, "labels is no list of names"),
        ({"taints": [1]}, "taints is no list of names"),
        ({"cordon": "yes"}, "cordon must be true or false"),
        ({"maxPercent": 0}, "maxPercent is no number from 1 to 100"),
        ({"intervalSeconds": True}, "intervalSeconds is no number"),
        ({"jobIntervalSeconds": "600"}, "jobIntervalSeconds is no number"),
    ],
    ids=str,
)
def test_mistake_is_reported_with_the_key(given: Any, reported: str) -> None:
    text = given if given == "no" else json.dumps(given)
    with pytest.raises(OptionError, match=reported):
        read_sick_nodes(text)
