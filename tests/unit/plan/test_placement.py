"""The annotation that holds where a queue has placed a job's pods."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dtj_contract import names
from dtj_core.plan.placement import Placement, read_placement

WHOLE = Placement(
    node_selector={"pool": "a"}, tolerations=({"key": "k"},), labels={"l": "1"}, annotations={"a": "2"}, gates=("g",)
)


def annotated(text: str) -> Any:
    return {"metadata": {"annotations": {names.ANNOTATION_PLACEMENT: text}}}


def test_placement_is_read_as_it_was_written() -> None:
    assert read_placement(annotated(WHOLE.encode())) == WHOLE
    assert read_placement({"metadata": {}}) == Placement()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "1",
        json.dumps(
            {"node_selector": "a", "tolerations": {"key": "k"}, "labels": ["l"], "annotations": 1, "gates": "g"}
        ),
        json.dumps({"node_selector": {"pool": 1}, "tolerations": ["k"], "labels": {"l": None}, "gates": [{}], "x": 1}),
    ],
)
def test_placement_that_somebody_has_edited_harms_no_job(text: str) -> None:
    assert read_placement(annotated(text)) == Placement()
