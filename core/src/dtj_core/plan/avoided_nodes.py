"""Decides which nodes a job avoids, and moves its pods away from them.

A node is avoided if attempt after attempt broke on it while the other nodes were clean, or if a
restart rule with the action RestartElsewhere decided so. A failure that occurs on every node is the
script's own, and no other node would cure it. sick_nodes.py adds the nodes that detectors call sick.

Three steps, so that a crash between them loses nothing and repeats nothing:

1. The node is entered into `status.avoidedNodes`, and an event reports it.
2. The StatefulSet's template excludes the nodes that the stored status names. An annotation of the
   template, and so of each pod, lists them. Applying the template touches no pod (OnDelete).
3. Once the StatefulSet's controller has seen that template, the pods on the node are deleted, all
   at once. The survivors wait in place, and nothing is counted against the budget.

A pod that was created with the exclusion is never deleted because of it. Where no other node has
room, the exclusion is lifted; the entry stays until its time is over, so that nothing flaps.
"""

from __future__ import annotations

from collections.abc import Iterator

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.api.avoid_nodes import AVOIDED_NODES, AvoidNodes
from dtj_core.plan.job import Job
from dtj_core.plan.model import Delete, Event, Object, Settings
from dtj_core.plan.times import rfc3339, unix

# Time that a pod may find no other node before the exclusion is lifted.
UNSCHEDULABLE_SECONDS = 60.0
# Of the nodes that the job's pods are on.
LARGEST_SHARE = 0.25
# Failures that no node has caused: lost pods, and what would happen on every node.
NOT_OF_A_NODE = names.PERMANENT | {
    Reason.POD_LOST, Reason.POD_DELETED, Reason.POD_EVICTED, Reason.PREEMPTED, Reason.NODE_LOST,
    Reason.CONNECTION_LOST, Reason.AGENT_TERMINATED, Reason.OOM_KILLED, Reason.FILE_NOT_FOUND,
}  # fmt: skip
# Pause between the write of a decision and the next step.
STEP_SECONDS = 0.2
# Stands in the scheduler's message about a pod that the exclusion keeps from a node.
AFFINITY = "affinity"


def active_nodes(status: Object, now: float | None = None) -> tuple[str, ...]:
    """Returns the names of the nodes that `status` excludes, sorted.

    `now`: leaves out nodes whose time is over.
    """
    entries = (entry for entry in status.get("avoidedNodes") or () if "lifted" not in entry)
    return tuple(sorted(entry["node"] for entry in entries if now is None or _is_current(entry, now)))


def why_avoided(status: Object, node: str) -> tuple[str, str] | None:
    """Returns the reason for which `status` excludes `node`, and the end of a sentence; None if it does not."""
    entries = (e for e in status.get("avoidedNodes") or () if "lifted" not in e and e.get("node") == node)
    entry: Object | None = next(entries, None)
    if entry is None:
        return None
    if entry.get("reason") == Reason.NODE_SICK:
        return Reason.NODE_SICK, f", which is sick: {entry.get('message') or 'see its conditions'}"
    return Reason.NODE_AVOIDED, ", where it failed"


def excluded_nodes(annotated: Object) -> tuple[str, ...]:
    """Returns the nodes that a pod, or a pod template, was created to avoid, sorted."""
    annotations = (annotated.get("metadata") or {}).get("annotations") or {}
    return tuple(sorted(name for name in str(annotations.get(names.ANNOTATION_AVOIDED_NODES, "")).split(",") if name))


def update(
    job: Job, status: Object, pods: tuple[Object, ...], now: float, settings: Settings
) -> tuple[Object, tuple[Event, ...]]:
    """Returns `status` with the nodes to avoid from now on, and events about what has changed.

    `pods`: those of the present StatefulSet.
    """
    if not settings.can_avoid_nodes or job.unreadable is not None or not _is_known_to_crd(job):
        return status, ()
    entries, events = _lift(current_entries(status, now), pods, now)
    for entry in _new_entries(job, status, entries, pods, now, settings):
        entries.append(entry)
        events.append(Event(type="Warning", reason=Reason.NODE_AVOIDED, message=_describe(entry, pods)))
    return with_entries(status, entries), tuple(events)


def may_avoid(job: Job, settings: Settings) -> bool:
    """Returns whether the job can avoid any node."""
    if not settings.can_avoid_nodes or job.unreadable is not None or not _is_known_to_crd(job):
        return False
    # A user who has chosen the node asks no scheduler.
    return not ((job.spec.template or {}).get("spec") or {}).get("nodeName")


def current_entries(status: Object, now: float) -> list[Object]:
    """Returns the entries of status.avoidedNodes whose time is not over."""
    return [entry for entry in status.get("avoidedNodes") or () if _is_current(entry, now)]


def with_entries(status: Object, entries: list[Object]) -> Object:
    """Returns `status` with these avoided nodes."""
    others = {name: value for name, value in status.items() if name != "avoidedNodes"}
    return others | ({"avoidedNodes": entries} if entries else {})


def move_pods(job: Job, child: Object, pods: tuple[Object, ...], now: float) -> tuple[Delete, ...]:
    """Returns deletions of the pods that the template of the StatefulSet `child` places better."""
    avoided, metadata = active_nodes(job.status, now), child["metadata"]
    seen = (child.get("status") or {}).get("observedGeneration", 0) >= metadata.get("generation", 1)
    # Before, the StatefulSet's controller could create the same pod again.
    if excluded_nodes(child["spec"].get("template") or {}) != avoided or not seen:
        return ()
    return tuple(
        Delete(kind="Pod", name=pod["metadata"]["name"], uid=pod["metadata"]["uid"])
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"] and _is_misplaced(pod, avoided)
    )


def until_next_look(job: Job, status: Object, pods: tuple[Object, ...], now: float) -> float | None:
    """Returns the seconds until the next exclusion ends, or must be lifted; None if there is none.

    A decision that is not stored yet is carried out soon after it is.
    """
    if active_nodes(status) != active_nodes(job.status):
        return STEP_SECONDS
    untils = [unix(entry.get("until")) for entry in status.get("avoidedNodes") or ()]
    # The entries of a job that can't be read stay after their end.
    ends = [end - now for end in untils if end is not None and end > now]
    blocked = [UNSCHEDULABLE_SECONDS - seconds for _, seconds, _ in _blocked_pods(pods, active_nodes(status), now)]
    return min((max(0.0, time) for time in (*ends, *(time for time in blocked if time > 0))), default=None)


def _is_known_to_crd(job: Job) -> bool:
    """Returns whether the CRD has avoidNodes. An older one drops the decisions from the status.

    The API server fills in defaults: that of avoidNodes, or of a newer field where avoidNodes has none any more.
    """
    return "avoidNodes" in (job.stored_spec.get("restart") or {}) or "kubeflowProgress" in job.stored_spec


def _is_misplaced(pod: Object, avoided: tuple[str, ...]) -> bool:
    node, excluded = _node(pod), excluded_nodes(pod)
    if node:
        return node in avoided and node not in excluded
    return bool(set(excluded) - set(avoided))  # waits for a node that it may use by now


def _lift(known: list[Object], pods: tuple[Object, ...], now: float) -> tuple[list[Object], list[Event]]:
    """Lifts the exclusions if a pod has found no other node for too long."""
    active = active_nodes({"avoidedNodes": known})
    blocked = [each for each in _blocked_pods(pods, active, now) if each[1] >= UNSCHEDULABLE_SECONDS]
    if not blocked:
        return list(known), []
    pod, _, scheduler = blocked[0]
    message = (
        f"node{'s' if len(active) > 1 else ''} {', '.join(active)} may be used again, because pod {pod} has found no "
        f"other node for {UNSCHEDULABLE_SECONDS:.0f} s: {scheduler}"
    )
    lifted = [entry if "lifted" in entry else entry | {"lifted": rfc3339(now)} for entry in known]
    return lifted, [Event(type="Warning", reason=Reason.NODE_ALLOWED, message=message)]


def _blocked_pods(pods: tuple[Object, ...], active: tuple[str, ...], now: float) -> Iterator[tuple[str, float, str]]:
    """Yields the pods that the exclusion may keep from running: name, seconds, the scheduler's message."""
    for pod in pods:
        conditions = (pod.get("status") or {}).get("conditions") or ()
        scheduled: Object = next((c for c in conditions if c.get("type") == "PodScheduled"), {})
        message = str(scheduled.get("message") or "")
        if scheduled.get("status") != "False" or AFFINITY not in message or not set(excluded_nodes(pod)) & set(active):
            continue
        since = unix(scheduled.get("lastTransitionTime")) or unix(pod["metadata"].get("creationTimestamp"))
        if since is not None:
            yield pod["metadata"]["name"], now - since, message


def _new_entries(
    job: Job, status: Object, entries: list[Object], pods: tuple[Object, ...], now: float, operator: Settings
) -> Iterator[Object]:
    settings = job.spec.restart.avoid_nodes
    if not may_avoid(job, operator):
        return
    known = {entry["node"] for entry in entries}
    # The share bounds what is concluded from failures. A node that is called sick is no conclusion.
    counted = {
        entry["node"] for entry in entries if settings.max_nodes is not None or entry.get("reason") != Reason.NODE_SICK
    }
    occupied = {node for pod in pods if (node := _node(pod))}
    room = _limit(settings, len(occupied | known)) - len(counted)
    recent = _recent_failures(status, settings, now)
    for node, failures in _suspects(recent, occupied, settings.after_failures):
        if node in known or room <= 0:
            continue
        known.add(node)
        room -= 1
        yield {
            "node": node,
            "reason": failures[-1].get("reason", Reason.WORKER_FAILED),
            "failures": len(failures),
            "since": rfc3339(now),
            "until": rfc3339(now + settings.for_seconds),
        }


def _recent_failures(status: Object, settings: AvoidNodes, now: float) -> list[Object]:
    """Returns failures on a known node that are younger than the time for which a node is avoided.

    An exclusion that has ended is therefore never renewed for the same failures.
    """
    found = []
    for failure in status.get("failures") or ():
        time = unix(failure.get("time"))
        if failure.get("node") and time is not None and time > now - settings.for_seconds:
            found.append(failure)
    return found


def _suspects(recent: list[Object], occupied: set[str], needed: int) -> Iterator[tuple[str, list[Object]]]:
    """Yields the nodes to avoid, each with the failures that show it."""
    by_rule = [failure for failure in recent if failure.get("action") == names.ACTION_RESTART_ELSEWHERE]
    for node in dict.fromkeys(failure["node"] for failure in by_rule):
        yield node, [failure for failure in by_rule if failure["node"] == node]
    # A rule has decided about a failure with an action, and only Restart leaves it as it was.
    blamed = [
        failure
        for failure in recent
        if failure.get("reason") not in NOT_OF_A_NODE
        and failure.get("action", names.ACTION_RESTART) == names.ACTION_RESTART
    ]
    nodes = {failure["node"] for failure in blamed}
    attempts = {failure.get("attempt") for failure in blamed}
    # Without another node that is clean, nothing shows that this one is at fault.
    if needed and len(nodes) == 1 and len(attempts) >= needed and nodes < occupied:
        yield nodes.pop(), blamed


def _limit(settings: AvoidNodes, nodes: int) -> int:
    share = max(1, int(nodes * LARGEST_SHARE))
    return min(AVOIDED_NODES, share if settings.max_nodes is None else settings.max_nodes)


def _describe(entry: Object, pods: tuple[Object, ...]) -> str:
    count, node = entry["failures"], entry["node"]
    moved = [pod["metadata"]["name"] for pod in pods if _node(pod) == node]
    why = f"{count} failure{'s' if count > 1 else ''} there, the last with reason {entry['reason']}"
    then = f"; recreating {', '.join(moved)} on other nodes" if moved else ""
    return f"node {node} is avoided until {entry['until']}: {why}{then}"


def _is_current(entry: Object, now: float) -> bool:
    until = unix(entry.get("until"))
    return bool(entry.get("node")) and until is not None and until > now


def _node(pod: Object) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")
