"""A trial on kind begins with warm pods only, and its tables show every figure."""

from __future__ import annotations

import pytest

from tests.chaos import kind_report
from tests.chaos.kind_report import Object

BEGIN, WARM = "[agent] j-0 listens on port 29400\n", "[agent] warm process 7 is ready; workers are forked from it\n"

LOGS = {
    "an agent that has just begun": (BEGIN, False),
    "a warm process": (BEGIN + WARM, True),
    "the agent before this one": (BEGIN + WARM + BEGIN, False),
    "the second agent": (BEGIN + WARM + BEGIN + WARM, True),
    "no log yet": ("", False),
    "the end of the log of an earlier agent": (WARM, False),
}


@pytest.mark.parametrize(("log", "warm"), LOGS.values(), ids=LOGS)
def test_pod_is_warm_once_its_last_agent_is(log: str, warm: bool) -> None:
    assert kind_report.is_warm(log) is warm


def pod(name: str, *, ready: str = "True", **metadata: str) -> Object:
    conditions = [{"type": "Ready", "status": ready}]
    return {"metadata": {"name": name, "uid": f"uid of {name}", **metadata}, "status": {"conditions": conditions}}


def test_pod_that_terminates_does_not_count() -> None:
    gone = pod("j-2", deletionTimestamp="2026-11-23T20:00:00Z")
    pods = [pod("j-0"), pod("j-1", ready="False"), gone]
    assert kind_report.count_ready(pods) == 1
    assert kind_report.staying(pods) == {"j-0": "uid of j-0", "j-1": "uid of j-1"}


def test_table_has_median_95th_percentile_and_worst() -> None:
    row = kind_report.table({"pod deleted": [float(n) for n in range(40, 0, -1)]}).splitlines()[-1]
    assert row == "| pod deleted | 40 | 20.50 s | 38.00 s | 40.00 s |"


def test_table_of_phases_has_those_that_were_measured() -> None:
    phases = {"pod": {2: {"detect": 0.5, "stop": 1.0}, 3: {"detect": 1.5}}}
    assert kind_report.phase_table(phases).splitlines()[2:] == [
        "| pod | detect | 2 | 1.00 s | 1.50 s | 1.50 s |",
        "| pod | stop | 1 | 1.00 s | 1.00 s | 1.00 s |",
    ]
