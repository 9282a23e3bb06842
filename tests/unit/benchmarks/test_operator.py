"""The benchmark of the operator: its tables, its plot, and how it counts requests in an audit log."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.operator import plot
from benchmarks.operator.creation import Children
from benchmarks.operator.plan import experiments
from benchmarks.operator.planes import Audit, resources
from benchmarks.operator.results import TITLES, render
from benchmarks.operator.running import Statuses, lag_above, worst_bucket


def creation(arm: str, seconds: float, **more: float) -> dict[str, Any]:
    figures = {"cpu_ms": 9.0, "rss_idle": 60.0, "rss_peak": 120.0, "restart_children": 2.0}
    return {"arm": arm, "trial": 0, "seconds": seconds, **(figures if not arm.startswith("floor") else {}), **more}


def table(key: str, *trials: dict[str, Any]) -> str:
    return render(key, {"circumstances": "here", "trials": list(trials)})


@pytest.mark.parametrize(
    ("seconds", "more", "verdict"),
    [
        (12.0, {}, "≤ 15 s: met; ≤ 1.6 x the floor: met; ≤ 70 MiB idle: met"),
        (16.1, {}, "≤ 15 s: missed; ≤ 1.6 x the floor: missed"),
        (12.0, {"restart_children": 3.1}, "≤ 15 ms: met; ≤ 3 s after a restart: missed"),
        (12.0, {"rss_idle": 71.0}, "≤ 70 MiB idle: missed; ≤ 130 MiB at the peak: met; ≤ 15 ms: met; ≤ 3 s"),
    ],
)
def test_targets_of_creation_are_judged_beside_the_floor(seconds: float, more: Any, verdict: str) -> None:
    found = table("creation", creation("floor", 10.0), creation("ours", seconds, **more))
    assert verdict in found
    assert f"| {seconds / 10:.2f}x |" in found


def test_writes_until_a_job_runs_are_listed_by_kind_and_judged_for_ours_alone() -> None:
    trial = {"trial": 0, "running_writes": 5.5, "running_writes_by_resource": {"create pods": 2.0, "get x": 0.01}}
    found = table("starting", {"arm": "ours", **trial}, {"arm": "other", **trial})
    assert "| ours | 1 | 5.5 | 2.0 create pods | ≤ 5: missed |" in found
    assert "| other | 1 | 5.5 | 2.0 create pods |  |" in found


def test_every_experiment_has_a_table_and_every_arm_one_name() -> None:
    arms = experiments(1000, 3)
    assert {each.key for each in arms} == set(TITLES)
    assert len({(each.key, each.arm) for each in arms}) == len(arms)


def test_listening_is_judged_in_proportion_to_its_jobs() -> None:
    trial = {
        "cpu": 0.15, "writes_per_second": 70.0, "reads_per_second": 0.0, "progress_age_median": 27.0,
        "progress_age_worst": 29.0, "failure_age_median": 0.1, "failure_age_worst": 1.2, "rss": 100.0,
    }  # fmt: skip
    prompt = {**trial, "failure_age_worst": 0.2}
    arms = [("1000", 0, trial), ("1000", 1, prompt), ("1000", 2, prompt), ("2000", 0, trial)]
    found = table("listening", *({"arm": arm, "trial": number, **each} for arm, number, each in arms))
    assert "≤ 10 %: missed; ≤ 40 writes: missed; ≤ 0 reads: met; ≤ 30 s: met; ≤ 1 s: missed" in found
    assert "≤ 20 %: met; ≤ 80 writes: met" in found


def test_plot_shows_the_slowest_arm_first() -> None:
    results = {"creation": {"trials": [creation("ours", 5.0), creation("other", 9.0), creation("ours", 7.0)]}}
    assert plot.bars(results) == {"other": [9.0], "ours": [5.0, 7.0]}


def event(verb: str, resource: str, name: str, code: int = 201, uri: str = "/x", user: str = "me") -> str:
    return json.dumps(
        {
            "verb": verb,
            "requestURI": uri,
            "user": {"username": user},
            "objectRef": {"resource": resource, "name": name},
            "responseStatus": {"code": code},
            "stageTimestamp": "2026-01-01T00:00:01.000000Z",
        },
        separators=(",", ":"),
    )


def audit(tmp_path: Path, *lines: str) -> Audit:
    log = tmp_path / "audit.log"
    log.write_text("\n".join(lines) + "\n")
    plane: Any = SimpleNamespace(audit_log=log)
    return Audit(plane, "me")


def test_writes_are_those_of_the_operator_that_were_stored(tmp_path: Path) -> None:
    found = audit(
        tmp_path,
        event("create", "pods", "b00001-0"),
        event("create", "pods", "b00001-dry-run", uri="/x?dryRun=All"),
        event("create", "pods", "b00001-1", 409),
        event("update", "leases", "dtj", 200),
        event("get", "pods", "b00001-0", 200),
        event("create", "pods", "b00002-0", user="you"),
    )
    assert resources(found.writes()) == {"create pods": 1}
    assert sorted(resources(found.reads())) == ["create pods", "get pods"]


def test_job_is_complete_with_its_last_child_and_not_before(tmp_path: Path) -> None:
    found = audit(tmp_path, event("patch", "services", "b00001"), event("patch", "secrets", "b00001-key", 200))
    children = Children(found, {"services": 1, "secrets": 1})
    assert children.complete() == 0, "a secret that was there is not created"
    with (tmp_path / "audit.log").open("a") as log:
        log.write(event("patch", "secrets", "b00001-key") + "\n")
    assert children.complete() == 1


def test_age_is_that_of_the_progress_right_before_it_is_replaced() -> None:
    plane: Any = None
    statuses = Statuses(plane, "/jobs")
    statuses.since = 0.0
    for seen, step in ((100.0, "1970-01-01T00:01:38Z"), (126.0, "1970-01-01T00:02:04Z")):
        statuses._take("u", {"progress": {"time": step}}, seen)
    assert statuses.ages == [126.0 - 98.0]


def test_blocks_of_the_event_loop_are_those_between_two_scrapes() -> None:
    def scrape(*counts: int) -> str:
        bounds = ("0.01", "0.05", "0.1", "+Inf")
        rows = zip(bounds, counts, strict=True)
        return "\n".join(f'dtj_event_loop_block_seconds_bucket{{le="{bound}"}} {count}.0' for bound, count in rows)

    before, after = scrape(5, 6, 6, 9), scrape(5, 9, 10, 13)
    assert lag_above(after) - lag_above(before) == 1
    assert worst_bucket(before, after) == 0.1
