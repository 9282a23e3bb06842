"""Takes a job's pods away from nodes that are called sick, before the next failure.

The steps are those of avoided_nodes.py after repeated failures: the node is entered into
`status.avoidedNodes`, the pod template excludes it, and the pods there are deleted with their grace period. Their
agents stop all ranks with that grace, so that a script that saves at SIGTERM saves together and loses no step; the
survivors wait in place, and nothing is counted.

A detector may be wrong about every node at once. Four bounds hold then:

- A sign that makes more than `max_percent` of the nodes sick is not believed. The rarest signs are believed first.
- Jobs begin to leave one node at a time, `interval_seconds` apart. All jobs of that node may leave together.
- A job moves at most once in `job_interval_seconds`, and then away from all sick nodes at once.
- `restart.avoidNodes.maxNodes` of the job holds here too; 0 keeps the job where it is.

The operator remembers none of this. When jobs left which node follows from the stored status of all jobs. Where
several nodes wait, the time decides whose turn it is: two jobs that are planned at the same moment, before the
decision about either is stored, don't both begin.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from dtj_contract.names import Reason
from dtj_core.api.avoid_nodes import AVOIDED_NODES
from dtj_core.plan import avoided_nodes
from dtj_core.plan.job import Job
from dtj_core.plan.model import Event, Object, Settings
from dtj_core.plan.node_signs import NodeHealth, SickNodeSettings, describe
from dtj_core.plan.times import rfc3339, unix

# A small cluster has two sick nodes at times, and one of them waits for its repair.
LEAST_NODES = 2


@dataclass(frozen=True, kw_only=True)
class Departure:
    """The nodes that a job leaves, or the time until it may."""

    nodes: tuple[str, ...] = ()
    """With pods of the job."""
    wait: float | None = None
    """Seconds until the job may leave one; None if there is none to leave."""


@dataclass(frozen=True, kw_only=True)
class Belief:
    """The nodes that count as sick."""

    messages: Mapping[str, str] = field(default_factory=dict)
    """The nodes' own text, by name."""
    doubted: tuple[str, ...] = ()
    """Signs that are on too many nodes."""


def believe(health: NodeHealth | None, settings: SickNodeSettings | None) -> Belief:
    """Returns the nodes whose signs are believed."""
    if health is None or settings is None or not health.sick:
        return Belief()
    by_sign: dict[str, set[str]] = {}
    for name, node in health.sick.items():
        for sign in node.signs:
            by_sign.setdefault(sign.name, set()).add(name)
    limit = largest_number(health.total, settings)
    names, believed, doubted = set[str](), set[str](), []
    for sign_name, nodes in sorted(by_sign.items(), key=lambda item: (len(item[1]), item[0])):
        if len(names | nodes) > limit:
            doubted.append(sign_name)
            continue
        names |= nodes
        believed.add(sign_name)
    messages = {name: describe(health.sick[name], believed) for name in sorted(names)}
    return Belief(messages=messages, doubted=tuple(doubted))


def largest_number(total: int, settings: SickNodeSettings) -> int:
    """Returns how many of `total` nodes may be sick. There is always one left to go to."""
    return min(max(LEAST_NODES, total * settings.max_percent // 100), total - 1)


def departure(
    occupied: Collection[str],
    entries: Collection[Object],
    believed: Collection[str],
    health: NodeHealth,
    now: float,
    settings: SickNodeSettings,
) -> Departure:
    """Returns which sick nodes a job leaves now.

    `occupied`: the nodes of its pods. `entries`: those of status.avoidedNodes whose time is not over.
    `believed`: the nodes that count as sick.
    """
    known = {entry["node"] for entry in entries}
    mine = sorted(node for node in set(occupied) if node in believed and node not in known)
    if not mine:
        return Departure()
    own = max(
        (_left(time, settings.job_interval_seconds, now) for _, time in moves({"avoidedNodes": entries})), default=0.0
    )
    waits = {node: max(own, _until_turn(node, believed, health, now, settings.interval_seconds)) for node in mine}
    wait = min(waits.values())
    if wait > 0:
        return Departure(wait=wait)
    return Departure(nodes=tuple(sorted(mine, key=lambda node: (waits[node], node))))


def moves(status: Object) -> Iterator[tuple[str, float]]:
    """Yields the sick nodes that a job has left, by its status, and when it began to leave each."""
    for entry in status.get("avoidedNodes") or ():
        since = unix(entry.get("since"))
        # A node that the job had no pods on is avoided too, and was not left.
        if entry.get("reason") == Reason.NODE_SICK and entry.get("pods") and since is not None:
            yield str(entry.get("node")), since


def update(
    job: Job, status: Object, pods: tuple[Object, ...], health: NodeHealth | None, now: float, settings: Settings
) -> tuple[Object, tuple[Event, ...], float | None]:
    """Returns `status` with the sick nodes that the job leaves, the event, and the seconds until it may leave one.

    `pods`: those of the present StatefulSet.
    """
    rules = settings.sick_nodes
    if rules is None or health is None or not avoided_nodes.may_avoid(job, settings):
        return status, (), None
    believed = believe(health, rules).messages
    entries = _renewed(job, avoided_nodes.current_entries(status, now), believed, now, rules)
    present = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    leaves = departure({_node(pod) for pod in present}, entries, believed, health, now, rules)
    left = leaves.nodes[: _room(job, entries)]
    if not left:
        wait = leaves.wait if _room(job, entries) else None
        return avoided_nodes.with_entries(status, entries), (), wait
    moved = {node: [p["metadata"]["name"] for p in present if _node(p) == node] for node in left}
    # A pod that is to go elsewhere must not go to another sick node.
    added = [*left, *(node for node in _open(believed, health, entries) if node not in left)][: _room(job, entries)]
    entries += [_entry(job, node, believed[node], now, rules, len(moved.get(node, ()))) for node in added]
    event = Event(type="Warning", reason=Reason.NODE_SICK, message=_describe(moved, believed))
    return avoided_nodes.with_entries(status, entries), (event,), None


def before_start(job: Job, status: Object, health: NodeHealth | None, now: float, settings: Settings) -> Object:
    """Returns `status` of a job whose pods are about to be created: none of them is to begin on a sick node."""
    rules = settings.sick_nodes
    if rules is None or health is None or not avoided_nodes.may_avoid(job, settings):
        return status
    believed = believe(health, rules).messages
    entries = avoided_nodes.current_entries(status, now)
    added = list(_open(believed, health, entries))[: _room(job, entries)]
    if not added:
        return status
    entries += [_entry(job, node, believed[node], now, rules) for node in added]
    return avoided_nodes.with_entries(status, entries)


def _open(believed: Collection[str], health: NodeHealth, entries: list[Object]) -> Iterator[str]:
    """Yields the sick nodes that the scheduler would still use."""
    known = {entry["node"] for entry in entries}
    return (node for node in believed if node not in known and health.sick[node].takes_pods)


def _room(job: Job, entries: list[Object]) -> int:
    """Returns the number of nodes that the job may avoid besides those of `entries`."""
    limit = job.spec.restart.avoid_nodes.max_nodes
    return max(0, (AVOIDED_NODES if limit is None else limit) - len(entries))


def _entry(job: Job, node: str, message: str, now: float, rules: SickNodeSettings, pods: int = 0) -> Object:
    # The entry also remembers when the job last moved.
    until = now + max(float(job.spec.restart.avoid_nodes.for_seconds), rules.job_interval_seconds)
    entry: Object = {"node": node, "reason": Reason.NODE_SICK, "message": message}
    return entry | ({"pods": pods} if pods else {}) | {"since": rfc3339(now), "until": rfc3339(until)}


def _renewed(
    job: Job, entries: list[Object], believed: Collection[str], now: float, rules: SickNodeSettings
) -> list[Object]:
    """Returns `entries` with a later end for the nodes that are still sick.

    An exclusion that was lifted ends as it would have: the job tries again then.
    """
    seconds = max(float(job.spec.restart.avoid_nodes.for_seconds), rules.job_interval_seconds)

    def is_due(entry: Object) -> bool:
        until = unix(entry.get("until"))
        is_sick = entry.get("reason") == Reason.NODE_SICK and entry["node"] in believed and "lifted" not in entry
        return is_sick and until is not None and until - now < seconds / 2

    return [entry | {"until": rfc3339(now + seconds)} if is_due(entry) else entry for entry in entries]


def _until_turn(node: str, believed: Collection[str], health: NodeHealth, now: float, interval: float) -> float:
    """Returns the seconds until jobs may begin to leave `node`."""
    recent = {name: left for name, time in health.begun.items() if (left := _left(time, interval, now)) > 0}
    if node in recent:
        return 0.0  # another job leaves it just now
    waiting = sorted({node, *(name for name in health.in_use if name in believed and name not in recent)})
    slots = (waiting.index(node) - int(now // interval)) % len(waiting)
    slot = 0.0 if slots == 0 else slots * interval - now % interval
    return max(slot, *recent.values(), 0.0)


def _left(since: float, seconds: float, now: float) -> float:
    """Returns what is left of `seconds`.

    The next leader's clock may be behind. One that is far behind was set back, and nothing is left.
    """
    past = now - since
    return seconds - max(past, 0.0) if -seconds < past < seconds else 0.0


def _describe(moved: Mapping[str, list[str]], believed: Mapping[str, str]) -> str:
    sick = "; ".join(f"node {node} is sick: {believed[node]}" for node in moved)
    names = ", ".join(name for node in moved for name in moved[node])
    return f"{sick}; stopping the ranks with the pods' grace period, and recreating {names} on other nodes"


def _node(pod: Object) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")
