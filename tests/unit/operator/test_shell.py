"""The small parts of the shell: wake-ups by events, metrics, settings, RBAC and log lines."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import kopf
import pytest
from kopf._cogs.aiokits.aiotoggles import ToggleSet
from kopf._cogs.clients.watching import streaming_block
from prometheus_client.parser import text_string_to_metric_families

from dtj_contract import names
from dtj_operator import errors, logs, rbac, settings
from dtj_operator.kube.client import failure
from dtj_operator.metrics import Metrics, phase_label
from dtj_operator.watches import Backoffs, WatchState, ignore_unclosed_watches, kopf_settings
from tests.unit.operator.fakes import job

# --- what wakes a job ------------------------------------------------------------------------------------------------


def child(kind: str = "Pod", **status: Any) -> Any:
    metadata = {"namespace": "ns", "name": "j-0", "uid": "p0", "generation": 1, "labels": {names.LABEL_JOB: "j"}}
    return {"kind": kind, "metadata": metadata, "spec": {}, "status": status}


def woken(tell: Callable[[WatchState], None]) -> list[tuple[str, str]]:
    keys: list[tuple[str, str]] = []
    tell(WatchState(keys.append, lambda _: None))
    return keys


def test_status_write_wakes_no_job_and_a_spec_change_does() -> None:
    def tell(watches: WatchState) -> None:
        watches.on_job_event(None, job())
        watches.on_job_event("MODIFIED", job({"phase": "Running"}, resourceVersion="2", managedFields=[1]))
        watches.on_job_event("MODIFIED", job(generation=2))
        watches.on_job_event("MODIFIED", job(generation=2, deletionTimestamp="now"))
        watches.on_job_event("DELETED", job(generation=2, deletionTimestamp="now"))

    assert woken(tell) == [("ns", "j")] * 4


def test_recreated_job_after_a_lost_deletion_event_is_observed() -> None:
    def tell(watches: WatchState) -> None:
        watches.on_job_event("ADDED", job())
        watches.on_job_event("ADDED", job(uid="u2"))

    assert woken(tell) == [("ns", "j")] * 2


def test_pod_event_wakes_its_job_only_for_fields_that_a_reconcile_reads() -> None:
    def tell(watches: WatchState) -> None:
        ready = {"type": "Ready", "status": "False", "reason": "x"}
        watches.on_child_event("pods", "ADDED", child(phase="Pending", conditions=[ready | {"lastProbeTime": "1"}]))
        watches.on_child_event("pods", "MODIFIED", child(phase="Pending", conditions=[ready | {"lastProbeTime": "2"}]))
        watches.on_child_event("pods", "MODIFIED", child(phase="Running", conditions=[ready]))
        watches.on_child_event("pods", "DELETED", child(phase="Running", conditions=[ready]))
        watches.on_child_event(
            "pods", "ADDED", {"metadata": {"namespace": "ns", "name": "x", "uid": "x"}}
        )  # without an owner

    assert woken(tell) == [("ns", "j")] * 3


def test_relist_drops_lost_jobs_and_names_unobserved_ones() -> None:
    watches = WatchState(lambda _: None, lambda _: None)
    watches.on_job_event("ADDED", job())
    watches.on_job_event("ADDED", job(name="k"))
    assert watches.unobserved([job(), job(name="k")]) == set()
    missed = watches.unobserved([job(generation=2), job(name="new")])
    assert {key for key, _ in missed} == {("ns", "j"), ("ns", "new")}
    watches.keep_only([job()])
    assert {key for key, _ in watches.unobserved([job(), job(name="k")])} == {("ns", "k")}


def test_kopf_settings_disable_events_and_scanning_and_back_off_endlessly() -> None:
    used = kopf_settings()
    assert not used.posting.enabled
    assert used.scanning.disabled
    tries = Backoffs()
    for _ in range(2):  # iterated again at the next outage
        again = iter(tries)
        assert [next(again) for _ in range(8)] == [1, 2, 4, 8, 15, 30, 30, 30]


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (400, "{}", errors.Invalid),
        (401, "{}", errors.NotAuthenticated),
        (403, "{}", errors.Forbidden),
        (404, "{}", errors.ObjectNotFound),
        (409, "{}", errors.Conflict),
        (410, "{}", errors.Gone),
        (422, "{}", errors.Invalid),
        (429, "{}", errors.Transient),
        (500, '{"message": "etcdserver: request timed out"}', errors.Transient),
        (
            500,
            '{"message": "failed to create typed patch object (/x; apps/v1): .spec.x: field not declared"}',
            errors.Invalid,
        ),
        (500, '{"message": "failed to convert new object (/x; apps/v1): quantities must match"}', errors.Invalid),
        (503, "not json <html>", errors.Transient),
        (302, "", errors.Transient),
    ],
)
def test_error_response_maps_to_its_exception(status: int, text: str, kind: type[errors.KubeError]) -> None:
    error = failure(status, text.encode(), "GET", "/x")
    assert type(error) is kind
    assert error.status == status
    assert error.message


# --- metrics ---------------------------------------------------------------------------------------------------------


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


# --- settings, rights, logs --------------------------------------------------------------------------------------------


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(b"k" * 32 + b"\n")
    return path


def test_flag_is_also_a_variable_and_the_flag_wins(key: Path) -> None:
    environ = {
        "DTJ_OPERATOR_AGENT_IMAGE": "from-env",
        "DTJ_OPERATOR_MASTER_KEY_FILE": str(key),
        "DTJ_OPERATOR_WORKERS": "3",
        "DTJ_OPERATOR_NAMESPACE": "a,b",
    }
    options = settings.parse([], environ)
    assert (options.settings.agent_image, options.workers, options.namespaces) == ("from-env", 3, ("a", "b"))
    assert options.settings.master_key == b"k" * 32
    assert settings.parse(["--agent-image", "flag"], environ).settings.agent_image == "flag"
    assert settings.parse(["--namespace", "c"], environ).namespaces == ("c",)


def test_every_flag_has_its_variable() -> None:
    described = settings._parser().format_help()
    assert {line.split()[0] for line in described.splitlines() if line.startswith("  --")} == {
        "--" + f for f in settings.FLAGS
    }


def test_no_namespace_flag_means_all_namespaces(key: Path) -> None:
    assert settings.parse(["--agent-image", "i", "--master-key-file", str(key)], {}).namespaces == ()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--master-key-file", "/nowhere"], "--master-key-file: /nowhere can't be read"),
        (["--master-key-file", "/dev/null"], "holds 0 bytes; it must hold 32"),
        (["--workers", "0"], "--workers is 0; it must be 1 or more"),
        (["--resync-seconds", "0.1"], "--resync-seconds is 0.1; it must be 1 or more"),
    ],
)
def test_invalid_setting_is_rejected_with_its_name_and_a_remedy(key: Path, change: list[str], says: str) -> None:
    with pytest.raises(errors.OptionError, match=says):
        settings.parse(["--agent-image", "i", "--master-key-file", str(key), *change], {})


def test_master_key_is_in_no_repr(key: Path) -> None:
    assert "kkkk" not in repr(settings.parse(["--agent-image", "i", "--master-key-file", str(key)], {}))


def test_rbac_never_reads_secrets_and_uses_no_wildcard_verb() -> None:
    verbs = rbac.RULES["", "secrets"]
    assert not {"get", "list", "watch"} & set(verbs)
    assert not any("*" in each for each in rbac.RULES.values())
    assert not any("finalizers" in resource for _, resource in rbac.RULES)


def test_log_line_is_one_json_object_with_job_and_attempt() -> None:
    record = logging.LogRecord("dtj", logging.WARNING, "f", 1, "two\nlines: %s", ("x",), None)
    logs.set_job("ns", "j")
    logs.set_attempt(job({"attempt": 3}))
    line = logs.JsonFormatter().format(record)
    assert "\n" not in line
    logged = json.loads(line)
    assert (logged["level"], logged["message"], logged["job"]) == (
        "warning",
        "two\nlines: x",
        {"namespace": "ns", "name": "j", "attempt": 3},
    )
    assert "ns/j: two" in logs.TextFormatter().format(record)
    logs.clear_job()
    assert "job" not in json.loads(logs.JsonFormatter().format(record))


# --- the end ---------------------------------------------------------------------------------------------------------


class InnerFirst(list[Any]):
    """The generators that a loop closes at its end, the youngest first.

    The loop's own set has them in any order.
    """

    def add(self, generator: Any) -> None:
        self.insert(0, generator)

    discard = list.remove


def end_inside_a_kopf_watch(caplog: pytest.LogCaptureFixture, handler: Any) -> list[str]:
    """Cancels kopf's watcher while it handles an event, so that the loop has to close its generators."""
    caplog.clear()

    async def watched() -> AsyncIterator[int]:
        paused = ToggleSet(any)
        async with streaming_block(
            resource=kopf.Resource(names.GROUP, names.VERSION, names.PLURAL), namespace=None, operator_paused=paused
        ):
            yield 1

    async def main() -> AsyncIterator[int]:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(handler)
        loop._asyncgens = InnerFirst()  # type: ignore[attr-defined]
        stream = watched()
        await anext(stream)
        return stream  # alive until the loop is closed

    kept = asyncio.run(main())
    del kept
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_unclosed_kopf_watch_is_no_error_and_other_errors_are(caplog: pytest.LogCaptureFixture) -> None:
    errors_logged = end_inside_a_kopf_watch(caplog, None)
    assert errors_logged, "kopf still does it"
    assert all("asynchronous generator" in line for line in errors_logged)
    assert not end_inside_a_kopf_watch(caplog, ignore_unclosed_watches)
    loop = asyncio.new_event_loop()
    ignore_unclosed_watches(loop, {"message": "a task failed"})
    loop.close()
    assert caplog.messages[-1] == "a task failed"
