"""Explains an agent that crashed because its container ran out of memory.

With cgroup v2 the kubelet (1.28 and later) sets memory.oom.group: the kernel kills all processes of
the container, and the agent with them. The next agent starts in a new cgroup whose counters are 0,
so the group can report only that an agent crashed. The kubelet knows the cause, and reports it in
the container's last state until the container ends again. Where only a worker is killed, its agent
reports the cause itself (dtj_agent/group/diagnosis.py).

The container's state is gone with the next end of the container, and the agents keep their own
version. restarts.py therefore never replaces the cause that this policy has found.
"""

from __future__ import annotations

from dtj_contract.names import Reason
from dtj_core.plan.model import Object
from dtj_core.plan.times import unix

OOM_KILLED = "OOMKilled"  # the kubelet's reason of a terminated container
# The group reports a killed agent as crashed, and as a lost pod until the agent is back.
CRASHED, LOST = Reason.AGENT_CRASHED, Reason.POD_LOST
UNEXPLAINED_REASONS = (CRASHED, LOST)
EVIDENCE = ("reason", "message", "exitCode", "signal")
# Difference between the clocks of two nodes. Both times are in whole seconds.
CLOCK_SECONDS = 5.0


def last_oom_kill(container_status: Object) -> Object:
    """Returns the end of a container that was killed for memory, if it is the last; else {}."""
    for state in ("state", "lastState"):
        ended = (container_status.get(state) or {}).get("terminated")
        if ended:
            return dict(ended) if ended.get("reason") == OOM_KILLED else {}
    return {}


def describe(pod: Object, container: str) -> str:
    """Returns what happened to the container of `pod`, and what to do about it."""
    name, spec = pod["metadata"]["name"], pod.get("spec") or {}
    everything = (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
    found: Object = next((each for each in everything if each.get("name") == container), {})
    limit = ((found.get("resources") or {}).get("limits") or {}).get("memory")
    if limit is None:
        return (
            f"container {container} of pod {name} has no memory limit, and the kernel killed it with its agent because "
            f"node {spec.get('nodeName') or 'of the pod'} ran out of memory: set resources.requests.memory and "
            "resources.limits.memory of the container in spec.template"
        )
    return (
        f"container {container} of pod {name} reached its memory limit of {limit}, and the kernel killed it with its "
        "agent: raise resources.limits.memory of the container in spec.template, or use less (batch size, data loader "
        "workers; files in /dev/shm count too)"
    )


def explain_crashes(status: Object, pods: tuple[Object, ...], container: str) -> Object:
    """Returns `status` in which failures and recoveries carry the kubelet's reason, where it has one.

    `container`: the name of the trainer container.
    """
    for pod in pods:
        states = (pod.get("status") or {}).get("containerStatuses") or ()
        state: Object = next((each for each in states if each.get("name") == container), {})
        killed = last_oom_kill(state)
        if killed:
            status = _explain(status, pod, container, killed, running="running" in (state.get("state") or {}))
    return status


def keep_explanation(old: Object, new: Object) -> Object:
    """Returns `new`, a later report of `old`, without losing the kubelet's reason."""
    if old.get("reason") != Reason.OOM_KILLED or not _is_unexplained(new):
        return new
    return new | {name: old[name] for name in EVIDENCE if name in old}


def explain_outcome(message: str, reported: tuple[Object, ...], failures: list[Object]) -> str:
    """Returns the agents' message about the end of the job with the kubelet's reason.

    `reported`: the failures that the outcome names. `failures`: the same ones in the status.
    """
    for failure in reported:
        known = next((f for f in failures if _same_failure(f, failure)), failure)
        if _is_unexplained(failure) and known.get("reason") == Reason.OOM_KILLED and failure.get("message"):
            message = message.replace(failure["message"], known["message"])
    return message


def _explain(status: Object, pod: Object, container: str, killed: Object, *, running: bool) -> Object:
    failures = list(status.get("failures") or ())
    finished = unix(killed.get("finishedAt"))
    place = _find_failure(failures, pod["metadata"]["name"], finished, running=running)
    if place is None:
        return status
    failure = failures[place]
    if _is_unexplained(failure):
        evidence: Object = {"reason": Reason.OOM_KILLED, "message": describe(pod, container), "signal": "SIGKILL"}
        if isinstance(killed.get("exitCode"), int):
            evidence["exitCode"] = killed["exitCode"]
        failures[place] = failure | evidence
        status = {**status, "failures": failures}
    return _explain_recovery(status, failure.get("attempt", 0))


def _find_failure(failures: list[Object], pod: str, finished: float | None, *, running: bool) -> int | None:
    """Returns the index of the failure that the end of the container caused; None if there is none.

    A loss is not explained once the container runs again: its agent is back, and reports a crash
    instead. A later loss has another cause.
    """
    reasons = (CRASHED,) if running else UNEXPLAINED_REASONS
    for wanted in (reasons, (Reason.OOM_KILLED,)):
        for place in reversed(range(len(failures))):
            failure = failures[place]
            time = unix(failure.get("time"))
            if failure.get("pod") != pod or failure.get("reason") not in wanted:
                continue
            if finished is not None and time is not None and time >= finished - CLOCK_SECONDS:
                return place
    return None


def _explain_recovery(status: Object, attempt: int) -> Object:
    """Returns `status` with the reason in the recovery of this attempt, if it is known already."""
    recoveries = list(status.get("recoveries") or ())
    place = next((i for i, each in enumerate(recoveries) if each.get("attempt", 0) > attempt), None)
    if place is None or recoveries[place].get("reason") not in UNEXPLAINED_REASONS:
        return status
    recoveries[place] = recoveries[place] | {"reason": Reason.OOM_KILLED}
    return {**status, "recoveries": recoveries}


def _is_unexplained(failure: Object) -> bool:
    """Returns whether the agents know less than the kubelet.

    An agent may have the reason from the operator, but only the operator knows exit code and limit.
    """
    if failure.get("reason") == Reason.OOM_KILLED:
        return failure.get("exitCode") is None
    return failure.get("reason") in UNEXPLAINED_REASONS


def _same_failure(one: Object, other: Object) -> bool:
    return all(one.get(name) == other.get(name) for name in ("attempt", "ordinal", "rank", "pod"))
