"""The table of status transitions: from a state, what is observed, and which conditions change their status.

A change is `Type before after Reason`, with `-` for a condition that there is not. test_transitions.py runs
each row through the planner, and tests/unit/operator/test_simulator.py holds the worlds of the
simulator against the table: a transition that a world reaches has a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dtj_core.plan.node_signs import NodeHealth, SickNode, SickNodeSettings, Sign
from dtj_core.plan.times import rfc3339
from tests.unit.plan.objects import NOW, World, agent, container, ended, job, outcome, pod, service

Object = dict[str, Any]
BUDGET = {"result": "Failed", "reason": "RestartBudgetSpent"}
FAILURE = {"attempt": 1, "rank": 1, "ordinal": 1, "pod": "digits-1", "reason": "WorkerFailed", "message": "exit code 7"}


class Recorded(World):
    """A world that keeps each change of a condition's status, in the order of the writes."""

    def __init__(self, body: Object) -> None:
        super().__init__(body)
        self.changes: list[str] = []
        self.unseen: Object | None = None
        """The StatefulSet that a late watch does not show."""

    def _execute(self, step: Any) -> None:
        before = self.status
        super()._execute(step)
        if self.job is not None:
            self.changes += changes(before, self.status)


def changes(before: Object, after: Object) -> list[str]:
    """Returns the conditions whose status differs, as the table writes them."""
    old, new = ({c["type"]: c for c in status.get("conditions") or ()} for status in (before, after))
    found = []
    for kind in sorted(old.keys() | new.keys()):
        was, now = (conditions.get(kind, {}).get("status", "-") for conditions in (old, new))
        if was != now:
            found.append(f"{kind} {was} {now} {(new.get(kind) or old[kind])['reason']}")
    return found


# --- states -----------------------------------------------------------------------------------------------------------


def new(**spec: Any) -> Recorded:
    return Recorded(job(**spec))


def pending(**spec: Any) -> Recorded:
    """Returns a job whose children were created and whose pods are not there yet."""
    world = new(**spec)
    world.settle(NOW)
    return world


def running(**spec: Any) -> Recorded:
    world = pending(**spec)
    up(world)
    world.settle(NOW + 1)
    return world


def restarting(**spec: Any) -> Recorded:
    """Returns a job that restarts after its pod 1 was lost."""
    world = running(**spec)
    lost(world)
    world.settle(NOW + 2)
    return world


def running_again(**spec: Any) -> Recorded:
    """Returns a job that runs its second attempt."""
    world = restarting(**spec)
    up(world, attempt=2)
    world.settle(NOW + 3)
    return world


def suspended(**spec: Any) -> Recorded:
    world = new(suspend=True, **spec)
    world.settle(NOW)
    return world


def suspended_unseen(**spec: Any) -> Recorded:
    """Returns a job that was suspended while it ran, and whose children a late watch does not show."""
    world = running(**spec)
    world.unseen = world.observed.stateful_set
    world.see(stateful_set=None, pods=(), agent=None)
    suspend(world)
    world.settle(NOW + 3)
    return world


def resumed(**spec: Any) -> Recorded:
    """Returns a job that was suspended and waits for its pods."""
    world = suspended(**spec)
    unsuspend(world)
    world.settle(NOW + 1)
    return world


def unwritten(**spec: Any) -> Recorded:
    """Returns a job whose children were created by an operator that ended before it wrote the status."""
    world = new(**spec)
    world.reconcile(NOW, crash_after=3)
    return world


def silent(**spec: Any) -> Recorded:
    """Returns a job whose agents have not answered for a minute."""
    world = running(**spec)
    silence(world)
    world.settle(NOW + 70)
    return world


def stalled(**spec: Any) -> Recorded:
    """Returns a running job whose spec this version can't read."""
    world = running(**spec)
    unreadable(world)
    world.settle(NOW + 2)
    return world


# --- causes -----------------------------------------------------------------------------------------------------------


def nothing(world: Recorded) -> None:
    """Lets the time pass."""


def up(world: Recorded, **fields: Any) -> None:
    """Shows pods that run, and their group too."""
    pods = tuple(pod(o, owner=world.set_uid) for o in range(3))
    world.see(pods=pods, agent=agent(**fields), agent_silent_seconds=0.0)


def forming(world: Recorded) -> None:
    """Shows pods that run, and agents that have begun no attempt."""
    up(world, attempt=0, phase="Rendezvous", startTime=None)


def rendezvous(reason: str) -> Callable[[Recorded], None]:
    """Returns that the agents form a new group for this reason."""

    def see(world: Recorded) -> None:
        failures = [FAILURE | {"reason": reason}] if reason.startswith("Worker") else []
        up(world, phase="Rendezvous", phaseReason=reason, failures=failures)

    return see


def lost(world: Recorded) -> None:
    """Removes pod 1, and nothing shows why."""
    pods = tuple(pod(o, owner=world.set_uid) for o in (0, 2))
    world.see(pods=pods, agent=agent(phase="Rendezvous", phaseReason="PodLost"))


def without_pods(world: Recorded) -> None:
    world.see(pods=(), agent=None)


def deleted(world: Recorded) -> None:
    """Deletes pod 1, whose agent has left."""
    pods = tuple(pod(o, owner=world.set_uid, deleted=o == 1) for o in range(3))
    world.see(pods=pods, agent=agent(phase="Rendezvous", phaseReason="PodLost"))


def evicted(world: Recorded) -> None:
    """Evicts pod 1, as its condition shows."""
    _disrupted(world, "EvictionByEvictionAPI", "drain")


def node_lost(world: Recorded) -> None:
    """Deletes pod 1, whose node does not respond."""
    _disrupted(world, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")


def _disrupted(world: Recorded, reason: str, message: str) -> None:
    disruption = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    gone = pod(1, owner=world.set_uid, deleted=True)
    gone["status"] = gone["status"] | {"conditions": [disruption]}
    pods = (pod(0, owner=world.set_uid), gone, pod(2, owner=world.set_uid))
    world.see(pods=pods, agent=agent(phase="Rendezvous", phaseReason="PodLost"))


def avoided(world: Recorded) -> None:
    """Deletes pod 1 from a node that the job avoids since its last three attempts failed there."""
    failures = [FAILURE | {"attempt": n, "node": "w1", "time": NOW} for n in (1, 2, 3)]
    there, gone = (pod(1, owner=world.set_uid, deleted=d) | {"spec": {"nodeName": "w1"}} for d in (False, True))
    others = pod(0, owner=world.set_uid), pod(2, owner=world.set_uid)
    world.see(pods=(others[0], there, others[1]), agent=agent(attempt=3, failures=failures))
    world.settle(NOW + 3)
    page = agent(attempt=3, failures=failures, phase="Rendezvous", phaseReason="PodLost")
    world.see(pods=(others[0], gone, others[1]), agent=page)


def on_sick_node(world: Recorded) -> None:
    """Shows a detector's sign on the node of pod 1, until the pod terminates there."""
    world.settings = replace(world.settings, sick_nodes=SickNodeSettings())
    xid = Sign("condition XidCriticalError", "condition XidCriticalError is True")
    world.see(nodes=NodeHealth(total=9, sick={"w1": SickNode(signs=(xid,))}, in_use=frozenset({"w1"})))
    world.settle(NOW + 3)
    deleted(world)


def children_deleted(world: Recorded) -> None:
    """Deletes the StatefulSet of a job, as a person would."""
    world.see(stateful_set=None, pods=(), agent=None)


def children_deleted_and_refused(world: Recorded) -> None:
    """Deletes the StatefulSet, and the API server rejects another one."""
    children_deleted(world)
    refused(world)


def children_of_somebody_else(world: Recorded) -> None:
    """Shows a Service that has the job's name and is not the job's."""
    theirs = service()
    del theirs["metadata"]["ownerReferences"]
    world.see(service=theirs)


def children_terminate(world: Recorded) -> None:
    """Deletes the StatefulSet, whose pods still terminate."""
    pods = tuple(pod(o, owner=world.set_uid, deleted=True) for o in range(3))
    world.see(stateful_set=None, pods=pods, agent=None)


def unscheduled(world: Recorded) -> None:
    """Shows pods that no node has room for, with the times of their objects."""
    child = world.observed.stateful_set
    assert child is not None
    child["metadata"]["creationTimestamp"] = rfc3339(NOW)
    full = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 Insufficient gpu."}
    pods = [pod(o, owner=world.set_uid, phase="Pending", conditions=[full]) for o in range(3)]
    for each in pods:
        each["metadata"]["creationTimestamp"] = rfc3339(NOW)
    world.see(pods=tuple(pods), agent=None)


def node_silent(world: Recorded) -> None:
    """Shows pods that their node does not begin to start."""
    pods = [pod(o, owner=world.set_uid, phase="Pending") for o in range(3)]
    for each in pods:
        each["metadata"]["creationTimestamp"] = rfc3339(NOW - 90)
    world.see(pods=tuple(pods))


def unsuspend_refused(world: Recorded) -> None:
    unsuspend(world)
    refused(world)


def unsuspend_into_conflict(world: Recorded) -> None:
    unsuspend(world)
    children_of_somebody_else(world)


def refused(world: Recorded) -> None:
    world.see(refusal="exceeded quota: q")


def rejected(world: Recorded) -> None:
    world.see(rejection="spec.template.spec.containers[0].image: Required value")


def finished(result: str = "Succeeded", **fields: Any) -> Callable[[Recorded], None]:
    """Returns that the agents have ended with this outcome."""

    def see(world: Recorded) -> None:
        done = container(restarts=1, last=ended(outcome(result, **fields)))
        pods = tuple(pod(o, owner=world.set_uid, phase="Running", containerStatuses=[done]) for o in range(3))
        world.see(pods=pods, agent=None)

    return see


def _change(world: Recorded, **spec: Any) -> None:
    assert world.job is not None
    world.job["spec"] |= spec
    world.job["metadata"]["generation"] += 1


def suspend(world: Recorded) -> None:
    _change(world, suspend=True)


def unsuspend(world: Recorded) -> None:
    _change(world, suspend=False)
    world.see(pods=())


def silence(world: Recorded) -> None:
    world.see(agent=None, agent_silent_seconds=65.0, agent_silence="unreachable")


def unreadable(world: Recorded) -> None:
    _change(world, backend="ucc")


def readable(world: Recorded) -> None:
    """Makes the spec readable again, as an upgrade of the operator does."""
    assert world.job is not None
    del world.job["spec"]["backend"]


def suspend_without_pods(world: Recorded) -> None:
    """Suspends the job, whose pods go with the StatefulSet."""
    suspend(world)
    world.settle(NOW + 3)
    world.see(pods=())


def all_failed(world: Recorded) -> None:
    finished("Failed", reason="RestartBudgetSpent")(world)


def seen_failed(world: Recorded) -> None:
    """Shows the children at last, whose agents have ended."""
    world.see(stateful_set=world.unseen)
    all_failed(world)


@dataclass(frozen=True)
class Row:
    state: Callable[..., Recorded]
    cause: Callable[[Recorded], None]
    expected: tuple[str, ...]
    spec: Object
    seconds: float = 3.0

    @property
    def name(self) -> str:
        name = self.cause.__qualname__.replace(".<locals>", "").removesuffix(".see")
        limits = " with " + ", ".join(self.spec) if self.spec else ""
        return f"{self.state.__name__}, {name}{limits} -> {self.expected[-1]}"
