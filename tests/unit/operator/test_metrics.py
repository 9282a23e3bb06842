"""The operator's metrics: bounded labels, and each fact counted once."""

from __future__ import annotations

import itertools
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from dtj_operator.metrics import Metrics, phase_label
from tests.unit.operator.fakes import job


def samples(metrics: Metrics) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


def test_series_used_by_alerts_exist_from_the_start() -> None:
    found = samples(Metrics("1.2"))
    assert found["dtj_build_info{version=1.2}"] == 1
    for name in (
        "dtj_reconcile_total{result=bug}",
        "dtj_workqueue_depth",
        "dtj_workqueue_retries_total",
        "dtj_jobs{phase=Running}",
        "dtj_jobs_finished_total{reason=RestartBudgetSpent,result=Failed}",
        "dtj_job_restarts_total{kind=InPlace}",
        "dtj_job_recovery_seconds_count{phase=rendezvous}",
        "dtj_jobs_finished_total{reason=NoProgress,result=Failed}",
        "dtj_job_restart_reasons_total{kind=InPlace,reason=WorkerFailed}",
        "dtj_job_restart_reasons_total{kind=Pod,reason=GroupShrunk}",
        "dtj_job_nodes_avoided_total{reason=NodeSick}",
    ):
        assert found[name] == 0


def test_status_write_counts_each_new_fact_once() -> None:
    metrics = Metrics("1")
    failed = {"type": "Failed", "status": "True", "reason": "RestartBudgetSpent"}
    begun = {"attempt": 2, "kind": "Pod", "reason": "NodeLost", "seconds": {"detect": 1.0, "load": 0.0}}
    over = begun | {"lostSteps": 20, "seconds": {"detect": 1.0, "load": 3.0}}
    history: list[Any] = [
        {},
        {"phase": "Restarting", "restarts": {"inPlace": 0, "pod": 1}, "recoveries": [begun]},
        {"phase": "Running", "restarts": {"inPlace": 0, "pod": 1}, "recoveries": [over]},
        {"phase": "Running", "restarts": {"inPlace": 2, "pod": 1}, "recoveries": [over], "progress": {"step": 5}},
        {"phase": "Failed", "restarts": {"inPlace": 2, "pod": 1}, "recoveries": [over], "conditions": [failed]},
        {
            "phase": "Failed",
            "restarts": {"inPlace": 2, "pod": 1},
            "recoveries": [over],
            "conditions": [failed],
            "ready": "0/2",
        },
    ]
    for before, after in itertools.pairwise(history):
        metrics.status_written(before, after)
    found = samples(metrics)
    assert found["dtj_status_writes_total"] == 5
    assert found["dtj_job_restarts_total{kind=Pod}"] == 1
    assert found["dtj_job_restarts_total{kind=InPlace}"] == 2
    assert found["dtj_job_restart_reasons_total{kind=Pod,reason=NodeLost}"] == 1
    assert found["dtj_job_lost_steps_total"] == 20
    assert found["dtj_job_recovery_seconds_count{phase=detect}"] == 1
    assert found["dtj_job_recovery_seconds_count{phase=load}"] == 1
    assert found["dtj_job_recovery_seconds_sum{phase=load}"] == 3
    assert found["dtj_jobs_finished_total{reason=RestartBudgetSpent,result=Failed}"] == 1


def test_avoided_node_is_counted_once_by_reason() -> None:
    metrics = Metrics("1")
    first = {"node": "w1", "reason": "WorkerFailed", "since": "2026-01-01T00:00:00Z"}
    lifted = first | {"lifted": "2026-01-01T00:10:00Z"}
    later = first | {"since": "2026-01-01T02:00:00Z", "reason": "MyReason"}
    for before, after in itertools.pairwise([[], [first], [lifted], [], [later]]):
        metrics.status_written({"avoidedNodes": before}, {"avoidedNodes": after})
    found = samples(metrics)
    assert found["dtj_job_nodes_avoided_total{reason=WorkerFailed}"] == 1
    assert found["dtj_job_nodes_avoided_total{reason=Other}"] == 1


def test_pod_message_is_never_a_metric_label() -> None:
    metrics = Metrics("1")
    recovery = {"attempt": 2, "kind": "mine", "reason": "MyReason", "seconds": {"mySeconds": 1.0}}
    end = {"type": "Failed", "status": "True", "reason": "MyEnd"}
    metrics.status_written({}, {"recoveries": [recovery], "conditions": [end]})
    assert not [series for series in samples(metrics) if "my" in series.lower()]
    assert samples(metrics)["dtj_jobs_finished_total{reason=Other,result=Failed}"] == 1


def test_jobs_are_counted_by_phase_and_corrected_by_a_list() -> None:
    metrics = Metrics("1")
    metrics.job_phase(("ns", "a"), "Pending")
    metrics.job_phase(("ns", "a"), "Running")
    metrics.job_phase(("ns", "b"), "Running")
    metrics.job_phase(("ns", "b"), None)
    metrics.job_phase(("ns", "never seen"), None)
    found = samples(metrics)
    assert (found["dtj_jobs{phase=Pending}"], found["dtj_jobs{phase=Running}"]) == (0, 1)
    metrics.all_job_phases({("ns", "c"): "Failed"})
    found = samples(metrics)
    assert (found["dtj_jobs{phase=Running}"], found["dtj_jobs{phase=Failed}"]) == (0, 1)
    assert phase_label(job()) == "Pending"
    assert phase_label(job({"phase": "Sleeping"})) == "Pending", "labels are bounded"
