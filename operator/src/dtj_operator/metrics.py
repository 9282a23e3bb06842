"""The operator's own Prometheus metrics.

Their names follow controller-runtime's, so that its dashboards fit.

No job's name is a label, because counters of deleted jobs would stay for ever. Counters about
jobs compare each written status with the previous one, so a restarted operator does not count
again what it plans again.
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
OTHER = "Other"  # a pod's reason outside our list
BROKEN = (
    names.Reason.WORKER_FAILED,
    names.Reason.OOM_KILLED,
    names.Reason.POD_LOST,
    names.Reason.POD_DELETED,
    names.Reason.POD_EVICTED,
    names.Reason.POD_REJECTED,
    names.Reason.PREEMPTED,
    names.Reason.NODE_LOST,
    names.Reason.AGENT_CRASHED,
    names.Reason.AGENT_TERMINATED,
    names.Reason.CONNECTION_LOST,
    names.Reason.WORKER_STUCK,
    names.Reason.WORKER_HUNG,
    names.Reason.NO_SIGN_OF_LIFE,
    names.Reason.NODE_SICK,
    OTHER,
)
MOVED = (names.Reason.NODE_AVOIDED, names.Reason.SPARE_USED, names.Reason.GROUP_SHRUNK, names.Reason.GROUP_GROWN)
FAILED_BECAUSE = (
    names.Reason.RESTART_BUDGET_SPENT,
    names.Reason.NO_PROGRESS,
    names.Reason.RESTART_RULE,
    names.Reason.FILE_NOT_FOUND,
    names.Reason.RENDEZVOUS_TIMEOUT,
    names.Reason.DEADLINE_EXCEEDED,
    names.Reason.STARTUP_DEADLINE_EXCEEDED,
    *sorted(names.PERMANENT),
    OTHER,
)

_FAST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BLOCKS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
_RECOVERY = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)


class Metrics:
    """All metrics, on a registry of their own."""

    def __init__(self, version: str) -> None:
        # Each metric would have one more series that nobody reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
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
        self.reconcile = counter("reconcile_total", "Reconciles by result.", ("result",))
        self.reconcile_seconds = histogram("reconcile_duration_seconds", "Duration of a reconcile.", _FAST)
        self.status_writes = counter("status_writes_total", "Status writes of jobs.")
        self.depth = gauge("workqueue_depth", "Jobs waiting for a worker.")
        self.adds = counter(
            "workqueue_adds_total", "Jobs added to the queue; a job that already waits is not counted again."
        )
        self.queue_seconds = histogram(
            "workqueue_queue_duration_seconds", "Time that a job waited for a worker.", _FAST
        )
        self.work_seconds = histogram("workqueue_work_duration_seconds", "Time that a worker spent on a job.", _FAST)
        self.retries = counter("workqueue_retries_total", "Jobs queued again after an error.")
        self.requests = counter(
            "kube_client_requests_total", "Requests to the API server.", ("verb", "resource", "code")
        )
        self.request_seconds = histogram(
            "kube_client_request_duration_seconds",
            "Duration of a request to the API server.",
            _FAST,
            ("verb", "resource"),
        )
        self.agent_requests = counter(
            "agent_requests_total", "Status requests to the agents of running jobs by result.", ("result",)
        )
        self.agent_listeners = gauge("agent_listeners", "Jobs whose agents are listened to, by state.", ("state",))
        self.previous_key = gauge(
            "previous_key_jobs", "Jobs whose agents take the previous master key only, which must stay until they end."
        )
        self.watch_events = counter("watch_events_total", "Events received by the watches.", ("resource",))
        self.watch_failures = counter(
            "watch_failures_total", "Lists and watches that failed and were tried again.", ("resource",)
        )
        self.lists = counter(
            "cache_lists_total", "Complete lists: one at the start, and one after each gap of a watch.", ("resource",)
        )
        self.cached = gauge("cache_objects", "Objects in the cache.", ("resource",))
        self.resync = gauge("last_resync_timestamp_seconds", "Unix time of the last look at all jobs.")
        self.blocks = histogram(
            "event_loop_block_seconds",
            "Time for which callbacks kept the event loop from all else, from 5 ms on.",
            _BLOCKS,
        )
        self.events_dropped = counter("events_dropped_total", "Kubernetes events dropped because a job had too many.")
        self.leader = gauge("leader", "1 while this process is the leader and acts, else 0.")
        self.overlapping = gauge(
            "overlapping_installations",
            "Other installations that serve a namespace of this one, as its leader sees it.",
        )
        self.jobs = gauge("jobs", "Jobs by phase.", ("phase",))
        self.finished = counter("jobs_finished_total", "Finished jobs by result and reason.", ("result", "reason"))
        self.restarts = counter("job_restarts_total", "Restarts of a job's group.", ("kind",))
        self.restart_reasons = counter(
            "job_restart_reasons_total", "Restarts of a job's group by reason.", ("kind", "reason")
        )
        self.nodes_avoided = counter(
            "job_nodes_avoided_total", "Nodes that jobs avoid, by the reason of the failures there.", ("reason",)
        )
        self.sick_nodes = gauge(
            "sick_nodes", "Nodes that are called sick; not believed are those with a sign of too many.", ("believed",)
        )
        self.lost_steps = counter("job_lost_steps_total", "Steps repeated because of restarts.")
        self.recovery_seconds = histogram(
            "job_recovery_seconds", "Duration of a recovery by phase.", _RECOVERY, ("phase",)
        )
        self._phases: dict[tuple[str, str], str] = {}
        self._begin_series()

    def _begin_series(self) -> None:
        """Shows the known series at 0: increase() and rate() miss the count with which a series appears."""
        for result in RESULTS:
            self.reconcile.labels(result)
        for result in agent_client.RESULTS:
            self.agent_requests.labels(result)
        for phase in PHASES:
            self.jobs.labels(phase)
        for kind in KINDS.values():
            self.restarts.labels(kind)
        for part in names.RECOVERY_PHASES:
            self.recovery_seconds.labels(part)
        for reason in (names.Reason.SUCCEEDED, names.Reason.RANK_0_SUCCEEDED):
            self.finished.labels(names.COMPLETE, reason)
        for reason in FAILED_BECAUSE:
            self.finished.labels(names.FAILED, reason)
        for reason in (*BROKEN, *MOVED):
            for kind in KINDS.values():
                self.restart_reasons.labels(kind, reason)
        for reason in BROKEN:
            self.nodes_avoided.labels(reason)

    def text(self) -> bytes:
        """Returns the metrics in the exposition format."""
        return generate_latest(self.registry)

    def watch_depth(self, depth: Callable[[], float]) -> None:
        """Reads the queue's depth at each scrape instead of at each change."""
        self.depth.set_function(depth)

    def watch_keys(self, count: Callable[[], float]) -> None:
        """Counts the jobs that still need the previous master key at each scrape."""
        self.previous_key.set_function(count)

    def watch_listeners(self, heard: Callable[[], float], silent: Callable[[], float]) -> None:
        """Reads the number of listeners at each scrape."""
        self.agent_listeners.labels("heard").set_function(heard)
        self.agent_listeners.labels("silent").set_function(silent)

    def request(self, verb: str, resource: str, code: str, seconds: float) -> None:
        """Implements dtj_operator.kube.client.RequestObserver."""
        self.requests.labels(verb, resource, code).inc()
        self.request_seconds.labels(verb, resource).observe(seconds)

    def watch_objects(self, plural: str, count: Callable[[], float]) -> None:
        """Counts the cached objects of a kind at each scrape."""
        self.cached.labels(plural).set_function(count)

    def watch_sick_nodes(self, believed: Callable[[], float], doubted: Callable[[], float]) -> None:
        """Counts the sick nodes at each scrape."""
        self.sick_nodes.labels("true").set_function(believed)
        self.sick_nodes.labels("false").set_function(doubted)

    # The methods of dtj_operator.kube.cache.reflector.ReflectorObserver.
    def watch_event(self, plural: str) -> None:
        self.watch_events.labels(plural).inc()

    def listed(self, plural: str) -> None:
        self.lists.labels(plural).inc()

    def watch_failed(self, plural: str) -> None:
        self.watch_failures.labels(plural).inc()

    # The methods of dtj_operator.workqueue.QueueObserver.
    def added(self) -> None:
        self.adds.inc()

    def taken(self, waited: float) -> None:
        self.queue_seconds.observe(waited)

    def worked(self, seconds: float) -> None:
        self.work_seconds.observe(seconds)

    def retried(self) -> None:
        self.retries.inc()

    def job_phase(self, key: tuple[str, str], phase: str | None) -> None:
        """Records the phase of one job. None means that the job is gone."""
        before = self._phases.pop(key, None) if phase is None else self._phases.get(key)
        if before == phase:
            return
        if before is not None:
            self.jobs.labels(before).dec()
        if phase is not None:
            self._phases[key] = phase
            self.jobs.labels(phase).inc()

    def all_job_phases(self, phases: Mapping[tuple[str, str], str]) -> None:
        """Replaces all phases by those of a list, which corrects whatever was missed."""
        self._phases = dict(phases)
        tally = Tally(phases.values())
        for phase in {*PHASES, *tally}:
            self.jobs.labels(phase).set(tally[phase])

    def status_written(self, before: Object, after: Object) -> None:
        """Counts whatever this status reports for the first time."""
        self.status_writes.inc()
        for end in (names.COMPLETE, names.FAILED):
            was, now = true_condition(before, end), true_condition(after, end)
            if now is not None and was is None:
                self.finished.labels(end, _reason(now)).inc()
        for key, kind in KINDS.items():
            more = after.get("restarts", {}).get(key, 0) - before.get("restarts", {}).get(key, 0)
            if more > 0:
                self.restarts.labels(kind).inc(more)
        avoided = {(entry.get("node"), entry.get("since")) for entry in before.get("avoidedNodes", [])}
        for entry in after.get("avoidedNodes", []):
            if (entry.get("node"), entry.get("since")) not in avoided:
                self.nodes_avoided.labels(_reason(entry)).inc()
        known = {recovery.get("attempt"): recovery for recovery in before.get("recoveries", [])}
        for recovery in after.get("recoveries", []):
            self._recovery(known.get(recovery.get("attempt"), {}), recovery)

    def _recovery(self, before: Object, after: Object) -> None:
        """Counts the parts of a recovery, each of them once.

        A recovery is reported when it begins, and its parts as they become known.
        """
        if not before:
            kind = after.get("kind")
            self.restart_reasons.labels(kind if kind in KINDS.values() else OTHER, _reason(after)).inc()
        if after.get("lostSteps") is not None and before.get("lostSteps") is None:
            self.lost_steps.inc(max(0, after["lostSteps"]))
        for part in names.RECOVERY_PHASES:
            # Agents report 0 until the duration of a phase is known.
            seconds = after.get("seconds", {}).get(part, 0)
            if seconds > 0 and not before.get("seconds", {}).get(part):
                self.recovery_seconds.labels(part).observe(seconds)


def _reason(entry: Object) -> str:
    """Returns the reason as a label: a pod's reason is counted as Other unless it is in our list."""
    reason = str(entry.get("reason"))
    return reason if reason in REASONS else OTHER


def true_condition(status: Object, kind: str) -> Object | None:
    """Returns the condition of this type if its status is True."""
    for condition in status.get("conditions", []):
        if condition.get("type") == kind and condition.get("status") == "True":
            found: Object = condition
            return found
    return None


def phase_label(job: Object) -> str:
    """Returns the phase as a label of the gauge.

    A job without a status is Pending, and so is an unknown phase: no foreign text becomes a label.
    """
    phase = job.get("status", {}).get("phase")
    return phase if phase in PHASES else names.PENDING
