"""Builds observations for the planner's tests, and executes plans in memory as an API server would."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any

from dtj_contract import names
from dtj_core.plan import plan
from dtj_core.plan.model import Annotate, Apply, Event, Nudge, Object, Observed, PatchStatus, Plan, Settings
from dtj_core.plan.times import rfc3339

NOW = 1_790_000_000.0
UID = "job-uid"
SET_UID = "set-uid"
SETTINGS = Settings(
    agent_image="dtj-operator:test", master_key=b"key", progress_write_seconds=30, status_poll_seconds=2
)


def job(status: Object | None = None, *, name: str = "digits", generation: int = 1, **spec: Any) -> Object:
    """Returns a stored job of 3 pods."""
    body: Object = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": "team", "uid": UID, "generation": generation},
        "spec": {"replicas": 3, "image": "trainer:cpu", "entrypoint": {"module": "train"}} | spec,
    }
    if status is not None:
        body["status"] = status
    return body


def started(status: Object | None = None, **spec: Any) -> tuple[Object, Object]:
    """Returns a job that was just started, and its StatefulSet."""
    first = plan(job(**spec), Observed(), NOW, SETTINGS)
    return job(first.status | (status or {}), **spec), stateful_set(first)


def stateful_set(of: Plan, uid: str = SET_UID) -> Object:
    """Returns the StatefulSet that a plan applies, as the API server would return it."""
    body = next(a.body for a in of.actions if isinstance(a, Apply) and a.body["kind"] == "StatefulSet")
    return {**body, "metadata": body["metadata"] | {"uid": uid}}


def applied(**spec: Any) -> dict[str, Any]:
    """Returns the children of a new job by kind."""
    actions = plan(job(**spec), Observed(), NOW, SETTINGS).actions
    return {action.body["kind"]: action.body for action in actions if isinstance(action, Apply)}


def template(pod: Any = None, **container: Any) -> Any:
    """Returns a spec with a template of one container."""
    return {"template": {"spec": {"containers": [{"name": "trainer", **container}], **(pod or {})}}}


def service(owner_uid: str = UID, name: str = "digits") -> Object:
    owner = {"kind": names.KIND, "name": name, "uid": owner_uid, "controller": True}
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {names.LABEL_JOB: name}}
    return {"kind": "Service", "metadata": {"name": name, "uid": "svc-uid", "ownerReferences": [owner]}, "spec": spec}


def pod(ordinal: int, *, owner: str | None = SET_UID, deleted: bool = False, **status: Any) -> Object:
    """Returns a pod: running, unless `status` is given."""
    metadata: Object = {"name": f"digits-{ordinal}", "uid": f"pod-{ordinal}"}
    if owner:
        metadata["ownerReferences"] = [{"kind": "StatefulSet", "uid": owner, "controller": True}]
    if deleted:
        metadata["deletionTimestamp"] = rfc3339(NOW)
    running = {"phase": "Running", "podIP": f"10.0.0.{ordinal}", "containerStatuses": [container()]}
    return {"metadata": metadata, "spec": {"nodeName": f"w{ordinal}"}, "status": status or running}


def container(name: str = "trainer", *, restarts: int = 0, last: Object | None = None, **state: Any) -> Object:
    """Returns a container status: running, unless `state` is given."""
    return {
        "name": name,
        "image": "trainer:cpu",
        "ready": not state,
        "restartCount": restarts,
        "state": state or {"running": {"startedAt": rfc3339(NOW)}},
        "lastState": {"terminated": last} if last else {},
    }


def pods(count: int = 3) -> tuple[Object, ...]:
    return tuple(pod(ordinal) for ordinal in range(count))


def agent(**fields: Any) -> Object:
    """Returns `/status` of an agent whose group runs its first attempt."""
    return {
        "version": 1,
        "job": "digits",
        "uid": UID,
        "ordinal": 0,
        "attempt": 1,
        "phase": "Running",
        "phaseReason": "WorkersRunning",
        "replicas": 3,
        "worldSize": 3,
        "restarts": {"inPlace": 0, "pod": 0, "counted": 0},
        "recoveries": [],
        "failures": [],
        "progress": None,
        "checkpoint": None,
        "events": [],
        "productiveSeconds": 0.0,
        "startTime": NOW,
        "outcome": None,
    } | fields


def outcome(result: str = "Succeeded", **fields: Any) -> Object:
    reason = "AllWorkersSucceeded" if result == "Succeeded" else "RestartBudgetSpent"
    return {
        "version": 1,
        "uid": UID,
        "result": result,
        "reason": reason,
        "message": "all 3 ranks exited with 0" if result == "Succeeded" else "rank 1 was ended by SIGKILL",
        "attempt": 1,
        "restarts": {"inPlace": 0, "pod": 0, "counted": 0},
        "failure": None,
        "progress": None,
        "checkpoint": None,
        "recoveries": [],
        "productiveSeconds": 50.0,
        "time": NOW,
    } | fields


def ended(message: str | Object, code: int = 0, **fields: Any) -> Object:
    """Returns a terminated state with this termination message."""
    text = message if isinstance(message, str) else json.dumps(message)
    return {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "message": text} | fields


def condition(status: Object, kind: str) -> Object:
    """Returns the condition of that type; {} if there is none."""
    return next((c for c in status.get("conditions", []) if c["type"] == kind), {})


def true_conditions(status: Object) -> list[str]:
    return [c["type"] for c in status.get("conditions", []) if c["status"] == "True"]


class World:
    """One job, its children, and all writes. The test plays the StatefulSet controller."""

    def __init__(self, body: Object, settings: Settings = SETTINGS) -> None:
        self.job: Object | None = deepcopy(body)
        self.observed = Observed()
        self.settings = settings
        self.writes: list[str] = []
        self.events: list[Event] = []
        self.runs = 0
        """Number of StatefulSets created so far."""

    @property
    def status(self) -> Object:
        return (self.job or {}).get("status", {})

    def reconcile(self, now: float, *, crash_after: int | None = None) -> Plan | None:
        """Plans, and executes the plan or its first `crash_after` steps."""
        if self.job is None:
            return None
        before = deepcopy((self.job, self.observed))
        wanted = plan(self.job, self.observed, now, self.settings)
        assert (self.job, self.observed) == before, "the planner changed its arguments"
        steps: list[Any] = [*wanted.actions, wanted.status, *wanted.events]
        for step in steps[:crash_after]:
            self._execute(step)
        return wanted

    def settle(self, now: float) -> None:
        """Reconciles until nothing is left to do: every write triggers another reconcile."""
        for _ in range(12):
            written = len(self.writes)
            self.reconcile(now)
            if len(self.writes) == written:
                return
        raise AssertionError(f"the job does not settle: {self.writes[-12:]}")

    def _execute(self, step: Any) -> None:
        if isinstance(step, Event):
            self.writes.append(f"event {step.reason}")
            self.events.append(step)
        elif isinstance(step, dict):
            if self.job is not None and step != self.status:
                self.writes.append("status")
                self.job["status"] = deepcopy(step)
        elif isinstance(step, Apply):
            self._apply(step.body)
        elif isinstance(step, Annotate):
            self.writes.append("annotate")
            child = step.stateful_set
            annotations = {**child["metadata"].get("annotations", {}), **step.annotations}
            self.see(stateful_set={**child, "metadata": child["metadata"] | {"annotations": annotations}})
        elif isinstance(step, PatchStatus):
            self.writes.append(f"patch {step.observed['kind']}")
            seen = {**step.observed, "status": {**step.observed.get("status", {}), **deepcopy(step.status)}}
            self.observed = replace(self.observed, workload=seen)
        elif isinstance(step, Nudge):
            self.writes.append("nudge")
            child = step.stateful_set
            annotations = {**child["metadata"].get("annotations", {}), names.ANNOTATION_NUDGED: step.time}
            self.see(stateful_set={**child, "metadata": child["metadata"] | {"annotations": annotations}})
        else:
            self.writes.append(f"delete {step.kind}")
            if step.kind == "StatefulSet":
                assert self.observed.stateful_set is not None
                assert self.observed.stateful_set["metadata"]["uid"] == step.uid
                self.observed = replace(self.observed, stateful_set=None, agent=None)
            elif step.kind == "Pod":
                left = tuple(pod for pod in self.observed.pods if pod["metadata"]["uid"] != step.uid)
                self.observed = replace(self.observed, pods=left)
            elif step.kind == "Workload":
                self.observed = replace(self.observed, workload=None)
            else:
                assert step.uid == UID
                self.job = None

    def _apply(self, body: Object) -> None:
        self.writes.append(f"apply {body['kind']}")
        if body["kind"] == "Service":
            self.observed = replace(self.observed, service=service())
        elif body["kind"] == "Workload":
            self.observed = replace(self.observed, workload={**body, "metadata": body["metadata"] | {"uid": "wl-uid"}})
        elif body["kind"] == "StatefulSet":
            existing = self.observed.stateful_set
            self.runs += existing is None
            uid = existing["metadata"]["uid"] if existing else f"set-{self.runs}"
            seen = {"status": {"observedGeneration": 1}, "metadata": body["metadata"] | {"uid": uid}}
            self.observed = replace(self.observed, stateful_set={**body, **seen})

    @property
    def set_uid(self) -> str | None:
        return self.observed.stateful_set["metadata"]["uid"] if self.observed.stateful_set else None

    def see(self, **fields: Any) -> None:
        """Changes the observed objects."""
        self.observed = replace(self.observed, **fields)
