"""The small parts of the shell: what wakes a job, what is counted, which settings are refused, what a log line says."""

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


def test_a_write_of_the_jobs_status_wakes_nobody_and_a_change_of_its_spec_does() -> None:
    def tell(watches: WatchState) -> None:
        watches.on_job_event(None, job())
        watches.on_job_event("MODIFIED", job({"phase": "Running"}, resourceVersion="2", managedFields=[1]))
        watches.on_job_event("MODIFIED", job(generation=2))
        watches.on_job_event("MODIFIED", job(generation=2, deletionTimestamp="now"))
        watches.on_job_event("DELETED", job(generation=2, deletionTimestamp="now"))

    assert woken(tell) == [("ns", "j")] * 4


def test_a_job_of_the_same_name_that_comes_after_a_lost_deletion_is_seen() -> None:
    def tell(watches: WatchState) -> None:
        watches.on_job_event("ADDED", job())
        watches.on_job_event("ADDED", job(uid="u2"))

    assert woken(tell) == [("ns", "j")] * 2


def test_a_pod_wakes_its_job_when_something_is_told_that_a_reconcile_reads() -> None:
    def tell(watches: WatchState) -> None:
        ready = {"type": "Ready", "status": "False", "reason": "x"}
        watches.on_child_event("pods", "ADDED", child(phase="Pending", conditions=[ready | {"lastProbeTime": "1"}]))
        watches.on_child_event("pods", "MODIFIED", child(phase="Pending", conditions=[ready | {"lastProbeTime": "2"}]))
        watches.on_child_event("pods", "MODIFIED", child(phase="Running", conditions=[ready]))
        watches.on_child_event("pods", "DELETED", child(phase="Running", conditions=[ready]))
        watches.on_child_event("pods", "ADDED", {"metadata": {"namespace": "ns", "name": "x", "uid": "x"}})  # nobody's

    assert woken(tell) == [("ns", "j")] * 3


def test_what_a_relist_has_lost_is_forgotten_and_what_no_watch_told_of_is_named() -> None:
    watches = WatchState(lambda _: None, lambda _: None)
    watches.on_job_event("ADDED", job())
    watches.on_job_event("ADDED", job(name="k"))
    assert watches.unobserved([job(), job(name="k")]) == set()
    missed = watches.unobserved([job(generation=2), job(name="new")])
    assert {key for key, _ in missed} == {("ns", "j"), ("ns", "new")}
    watches.keep_only([job()])
    assert {key for key, _ in watches.unobserved([job(), job(name="k")])} == {("ns", "k")}


def test_kopf_settings_post_no_events_scan_nothing_and_back_off_without_end() -> None:
    used = kopf_settings()
    assert not used.posting.enabled
    assert used.scanning.disabled
    tries = Backoffs()
    for _ in range(2):  # gone through again at the next outage
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
        (500, '{"message": "failed to create typed patch object (/x; apps/v1): .spec.x: field not declared"}', errors.Invalid),
        (500, '{"message": "failed to convert new object (/x; apps/v1): quantities must match"}', errors.Invalid),
        (503, "not json <html>", errors.Transient),
        (302, "", errors.Transient),
    ],
)
def test_an_answer_that_is_not_2xx_is_one_of_the_tree(status: int, text: str, kind: type[errors.KubeError]) -> None:
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


def test_series_that_alerts_are_written_on_are_there_from_the_start() -> None:
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


def test_what_a_status_write_says_for_the_first_time_is_counted_and_never_again() -> None:
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
        {"phase": "Failed", "restarts": {"inPlace": 2, "pod": 1}, "recoveries": [over], "conditions": [failed], "ready": "0/2"},
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


def test_no_word_of_a_pod_is_a_label() -> None:
    metrics = Metrics("1")
    recovery = {"attempt": 2, "kind": "mine", "reason": "MyReason", "seconds": {"mySeconds": 1.0}}
    end = {"type": "Failed", "status": "True", "reason": "MyEnd"}
    metrics.status_written({}, {"recoveries": [recovery], "conditions": [end]})
    assert not [series for series in samples(metrics) if "my" in series.lower()]
    assert samples(metrics)["dtj_jobs_finished_total{reason=Other,result=Failed}"] == 1


def test_jobs_are_counted_by_phase_and_a_list_heals_what_was_missed() -> None:
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


def test_a_flag_is_also_a_variable_and_the_flag_wins(key: Path) -> None:
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
    assert {line.split()[0] for line in described.splitlines() if line.startswith("  --")} == {"--" + f for f in settings.FLAGS}


def test_no_namespace_means_all(key: Path) -> None:
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
def test_a_wrong_setting_is_refused_with_its_name_and_what_to_write(key: Path, change: list[str], says: str) -> None:
    with pytest.raises(errors.OptionError, match=says):
        settings.parse(["--agent-image", "i", "--master-key-file", str(key), *change], {})


def test_the_master_key_is_in_no_representation(key: Path) -> None:
    assert "kkkk" not in repr(settings.parse(["--agent-image", "i", "--master-key-file", str(key)], {}))


def test_secrets_are_written_and_never_read_and_nothing_is_asked_for_all_verbs() -> None:
    verbs = rbac.RULES["", "secrets"]
    assert not {"get", "list", "watch"} & set(verbs)
    assert not any("*" in each for each in rbac.RULES.values())
    assert not any("finalizers" in resource for _, resource in rbac.RULES)


def test_a_log_line_is_one_json_object_with_its_job_and_attempt() -> None:
    record = logging.LogRecord("dtj", logging.WARNING, "f", 1, "two\nlines: %s", ("x",), None)
    logs.set_job("ns", "j")
    logs.set_attempt(job({"attempt": 3}))
    line = logs.JsonFormatter().format(record)
    assert "\n" not in line
    said = json.loads(line)
    assert (said["level"], said["message"], said["job"]) == (
        "warning",
        "two\nlines: x",
        {"namespace": "ns", "name": "j", "attempt": 3},
    )
    assert "ns/j: two" in logs.TextFormatter().format(record)
    logs.clear_job()
    assert "job" not in json.loads(logs.JsonFormatter().format(record))


# --- the end ---------------------------------------------------------------------------------------------------------


class InnerFirst(list[Any]):
    """The generators that a loop closes at its end, the youngest first. The loop's own set has them in any order."""

    def add(self, generator: Any) -> None:
        self.insert(0, generator)

    discard = list.remove


def ended_inside_a_watch_of_kopfs(caplog: pytest.LogCaptureFixture, handler: Any) -> list[str]:
    """kopf's watcher is cancelled while it deals with an event, so that its generators are left for the loop to close."""
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


def test_a_watch_that_kopf_leaves_open_at_the_end_is_no_error_and_other_errors_are(caplog: pytest.LogCaptureFixture) -> None:
    said = ended_inside_a_watch_of_kopfs(caplog, None)
    assert said, "kopf still does it"
    assert all("asynchronous generator" in line for line in said)
    assert not ended_inside_a_watch_of_kopfs(caplog, ignore_unclosed_watches)
    loop = asyncio.new_event_loop()
    ignore_unclosed_watches(loop, {"message": "a task failed"})
    loop.close()
    assert caplog.messages[-1] == "a task failed"
