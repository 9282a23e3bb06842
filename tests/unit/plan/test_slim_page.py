"""The slim form of a page has all that the planner reads, and little more."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtj_core.plan.agent_report import report_from_status
from dtj_core.plan.slim_page import slim, without_clock
from tests.unit.plan.objects import agent

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(st.sampled_from(["pod", "step"]), PLAIN, max_size=2)
ITEMS = st.lists(
    st.dictionaries(
        st.sampled_from(["attempt", "ordinal", "pod", "address", "state", "reason", "time", "message", "logTail"]),
        VALUES | st.sampled_from(["running", "stuck", "idle"]),
        max_size=6,
    )
    | VALUES,
    max_size=8,
)
PAGES = st.fixed_dictionaries(
    {"version": st.just(1), "uid": st.just("u")},
    optional={
        **dict.fromkeys(("members", "failures", "recoveries", "events", "stragglers"), ITEMS | VALUES),
        **dict.fromkeys(("attempt", "phase", "leader", "progress", "restarts", "checkpoint", "replicas"), VALUES),
    },
)


@settings(deadline=None)
@given(page=PAGES)
def test_report_of_the_slim_page_is_that_of_the_page(page: Any) -> None:
    kept = json.loads(json.dumps(slim(page)))
    assert repr(report_from_status(kept, "u")) == repr(report_from_status(page, "u"))


@pytest.mark.parametrize("state", ["running", "idle", "stuck"])
def test_page_of_a_thousand_pods_is_small(state: str) -> None:
    members = [
        {
            "ordinal": n,
            "pod": f"digits-{n}",
            "node": f"node-{n}",
            "address": f"10.0.{n // 256}.{n % 256}",
            "state": state,
        }
        for n in range(1024)
    ]
    kept = json.dumps(slim(agent() | {"members": members}))
    assert len(kept) < (100_000 if state == "stuck" else 50_000)


CHANGES: dict[str, tuple[dict[str, Any], bool]] = {
    "nothing": ({}, True),
    "productive seconds": ({"productiveSeconds": 81.5}, True),
    "a step": ({"progress": {"step": 121}, "productiveSeconds": 81.5}, False),
    "the time of a step": ({"progress": {"step": 120, "time": 9.0}}, False),
    "a checkpoint": ({"checkpoint": {"step": 120}, "productiveSeconds": 81.5}, False),
    "an attempt": ({"attempt": 2}, False),
    "an unknown step": ({"stepsUnknown": True}, False),
    "another memory": ({"startTime": 1.0}, False),
}
"""Fields of a later page, and whether it is the same without its clock."""


@pytest.mark.parametrize(("more", "is_same"), CHANGES.values(), ids=CHANGES)
def test_page_without_the_clock_is_the_same_unless_something_happened(more: Any, is_same: bool) -> None:
    before = slim(agent(progress={"step": 120}, productiveSeconds=55.5))
    kept = dict(before)
    after = slim(agent(progress={"step": 120}, productiveSeconds=55.5) | more)
    assert (without_clock(after) == without_clock(before)) is is_same
    assert before == kept, "the page itself keeps its clock"
    assert set(before) - set(without_clock(before)) == {"productiveSeconds"}
