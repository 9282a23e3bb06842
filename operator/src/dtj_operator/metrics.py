"""The operator's own metrics, for Prometheus. Names as controller-runtime's, so that its dashboards fit.

No job's name is a label: counters of jobs that are gone would stay for ever. Counters of jobs are counted from the status
that was written, old against new: what a restart of the operator plans again it does not count again.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client import platform_collector as platform
from prometheus_client import process_collector as process

from dtj_contract import names
from dtj_core.plan.model import Object
from dtj_operator import agent_client

PHASES = (names.PENDING, names.RUNNING, names.RESTARTING, names.SUSPENDED, names.COMPLETE, names.FAILED)
RESULTS = ("success", "requeue", "conflict", "error", "bug", "gone")
KINDS = {"inPlace": "InPlace", "pod": "Pod"}
REASONS = {value for name, value in vars(names.Reason).items() if name.isupper()}
OTHER = "Other"  # a reason from a pod that is none of ours

_FAST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_RECOVERY = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)


class Metrics:
    """Everything on one registry of our own."""

    def __init__(self, version: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # one more series for each, that nobody reads
        registry = self.registry = CollectorRegistry()
        process.ProcessCollector(registry=registry)
        platform.PlatformCollector(registry=registry)

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter("dtj_" + name, text, labels, registry=registry)

        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge("dtj_" + name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histogram:
            return Histogram("dtj_" + name, text, labels, buckets=buckets, registry=registry)

        gauge("build_info", "The operator's version.", ("version",)).labels(version).set(1)
        self.reconcile = counter("reconcile_total", "Reconciles by how they ended.", ("result",))
        self.reconcile_seconds = histogram("reconcile_duration_seconds", "How long a reconcile took.", _FAST)
        self.status_writes = counter("status_writes_total", "Writes of a job's status.")
        self.depth = gauge("workqueue_depth", "Jobs that wait for a worker.")
        self.adds = counter("workqueue_adds_total", "Jobs put into the queue; one that already waits is not put again.")
        self.queue_seconds = histogram("workqueue_queue_duration_seconds", "How long a job waited for a worker.", _FAST)
        self.work_seconds = histogram("workqueue_work_duration_seconds", "How long a worker had a job.", _FAST)
        self.retries = counter("workqueue_retries_total", "Jobs put back after an error.")
        self.requests = counter("kube_client_requests_total", "Requests to the API server.", ("verb", "resource", "code"))
        self.request_seconds = histogram(
            "kube_client_request_duration_seconds", "How long a request to the API server took.", _FAST, ("verb", "resource")
        )
        self.agent_polls = counter("agent_polls_total", "Questions to the agents of running jobs by how they ended.", ("result",))
        self.watch_events = counter("watch_events_total", "Changes that kopf's watches told of.", ("resource",))
        self.watch_missed = counter("watch_missed_total", "Jobs that a resync found changed and no watch had told of.")
        self.resync = gauge("last_resync_timestamp_seconds", "Unix time of the last complete list of jobs.")
        self.events_dropped = counter("events_dropped_total", "Kubernetes events left out because a job had too many.")
        self.jobs = gauge("jobs", "Jobs by phase.", ("phase",))
        self.finished = counter("jobs_finished_total", "Jobs that ended.", ("result", "reason"))
        self.restarts = counter("job_restarts_total", "Restarts of a job's group.", ("kind",))
        self.restart_reasons = counter("job_restart_reasons_total", "Restarts of a job's group by reason.", ("kind", "reason"))
        self.lost_steps = counter("job_lost_steps_total", "Steps done twice because of restarts.")
        self.recovery_seconds = histogram("job_recovery_seconds", "What a restart took, by part.", _RECOVERY, ("phase",))
        # A rate() over a series that appears with its first count misses that count.
        for result in RESULTS:
            self.reconcile.labels(result)
        for result in agent_client.RESULTS:
            self.agent_polls.labels(result)
        for phase in PHASES:
            self.jobs.labels(phase)
        for kind in KINDS.values():
            self.restarts.labels(kind)
        for part in names.RECOVERY_PHASES:
            self.recovery_seconds.labels(part)
        self.finished.labels(names.COMPLETE, names.Reason.SUCCEEDED)
        spent = (names.Reason.RESTART_BUDGET_SPENT, names.Reason.FILE_NOT_FOUND, names.Reason.DEADLINE_EXCEEDED)
        for reason in (*spent, *sorted(names.PERMANENT)):
            self.finished.labels(names.FAILED, reason)
        self._phases: dict[tuple[str, str], str] = {}

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)

    def watch_depth(self, depth: Callable[[], float]) -> None:
        """Read the queue's depth when asked, not at each change."""
        self.depth.set_function(depth)

    def request(self, verb: str, resource: str, code: str, seconds: float) -> None:
        """As dtj_operator.kube.client.RequestObserver."""
        self.requests.labels(verb, resource, code).inc()
        self.request_seconds.labels(verb, resource).observe(seconds)

    # As dtj_operator.workqueue.QueueObserver.
    def added(self) -> None:
        self.adds.inc()

    def taken(self, waited: float) -> None:
        self.queue_seconds.observe(waited)

    def worked(self, seconds: float) -> None:
        self.work_seconds.observe(seconds)

    def retried(self) -> None:
        self.retries.inc()

    def job_phase(self, key: tuple[str, str], phase: str | None) -> None:
        """This job is in that phase now; None: there is no such job."""
        before = self._phases.pop(key, None) if phase is None else self._phases.get(key)
        if before == phase:
            return
        if before is not None:
            self.jobs.labels(before).dec()
        if phase is not None:
            self._phases[key] = phase
            self.jobs.labels(phase).inc()

    def all_job_phases(self, phases: Mapping[tuple[str, str], str]) -> None:
        """All there are, from a list: heals what was missed."""
        self._phases = dict(phases)
        tally = Tally(phases.values())
        for phase in {*PHASES, *tally}:
            self.jobs.labels(phase).set(tally[phase])

    def status_written(self, before: Object, after: Object) -> None:
        """Count what this write says for the first time."""
        self.status_writes.inc()
        for end in (names.COMPLETE, names.FAILED):
            was, now = true_condition(before, end), true_condition(after, end)
            if now is not None and was is None:
                self.finished.labels(end, _reason(now)).inc()
        for key, kind in KINDS.items():
            more = after.get("restarts", {}).get(key, 0) - before.get("restarts", {}).get(key, 0)
            if more > 0:
                self.restarts.labels(kind).inc(more)
        known = {recovery.get("attempt"): recovery for recovery in before.get("recoveries", [])}
        for recovery in after.get("recoveries", []):
            self._recovery(known.get(recovery.get("attempt"), {}), recovery)

    def _recovery(self, before: Object, after: Object) -> None:
        """A recovery is told of when it begins, and its parts as they become known: each is counted once."""
        if not before:
            kind = after.get("kind")
            self.restart_reasons.labels(kind if kind in KINDS.values() else OTHER, _reason(after)).inc()
        if after.get("lostSteps") is not None and before.get("lostSteps") is None:
            self.lost_steps.inc(max(0, after["lostSteps"]))
        for part in names.RECOVERY_PHASES:
            # 0 until it is known, as the agents report it.
            seconds = after.get("seconds", {}).get(part, 0)
            if seconds > 0 and not before.get("seconds", {}).get(part):
                self.recovery_seconds.labels(part).observe(seconds)


def _reason(said: Object) -> str:
    """As a label: a pod's word, so of our list or none."""
    reason = str(said.get("reason"))
    return reason if reason in REASONS else OTHER


def true_condition(status: Object, kind: str) -> Object | None:
    """The condition of this type if it holds."""
    for condition in status.get("conditions", []):
        if condition.get("type") == kind and condition.get("status") == "True":
            found: Object = condition
            return found
    return None


def phase_label(job: Object) -> str:
    """The phase for the gauge: a job that nobody has looked at yet is Pending, and a made-up word is no label."""
    phase = job.get("status", {}).get("phase")
    return phase if phase in PHASES else names.PENDING
