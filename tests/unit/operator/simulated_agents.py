"""The agents of a job's pods as the operator sees them: a group with a memory, its page and its outcome.

A memory is shared by the pods of a job and lives as long as one of them.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from dtj_agent.pages.status_version import status_version
from dtj_contract import names
from dtj_core.plan.model import Object

if TYPE_CHECKING:
    from tests.unit.operator.simulator import World


class Agent:
    """The agent of one pod. Its process lives on where its node is only unreachable."""

    def __init__(self, pod: Object, address: str) -> None:
        self.uid = pod["metadata"]["uid"]
        self.name = pod["metadata"]["name"]
        self.ordinal = int(self.name.rpartition("-")[2])
        self.node = pod["spec"]["nodeName"]
        self.address = address
        self.running = True
        """Whether its container runs."""
        env = {e["name"]: e.get("value") for e in pod["spec"]["containers"][0]["env"]}
        self.job_uid = str(env[names.ENV_JOB_UID])
        self.floor = int(str(env[names.ENV_ATTEMPT_FLOOR]))
        self.replicas = int(str(env[names.ENV_REPLICAS]))
        self.max_restarts = int(str(env[names.ENV_MAX_RESTARTS]))
        least = env.get(names.ENV_MIN_REPLICAS)
        self.least = None if least is None else int(least)
        self.group = Group(self)


class Group:
    """The memory that the agents of one job share."""

    def __init__(self, first: Agent) -> None:
        self.job_uid = first.job_uid
        self.floor, self.replicas, self.max_restarts = first.floor, first.replicas, first.max_restarts
        self.least = first.least
        """Pods with which an elastic group trains; None: it is not elastic."""
        self.attempt = 0
        self.phase, self.reason = "Rendezvous", ""
        self.start_time: float | None = None
        self.restarts = {"inPlace": 0, "pod": 0, "counted": 0}
        self.failures: list[Object] = []
        self.recoveries: list[Object] = []
        self.members: frozenset[str] = frozenset()
        self.since = 0.0
        """When the running attempt began."""
        self.done = 0.0
        """Seconds of work, which checkpoints keep."""
        self.outcome: Object | None = None
        self.pages: list[Object] = []
        """Earlier pages of this memory."""


class Agents:
    def __init__(self, world: World) -> None:
        self.world = world
        self.known: dict[str, Agent] = {}
        """By uid of the pod."""
        self.groups: list[Group] = []
        """All that ever were."""

    def pod_started(self, pod: Object, address: str) -> None:
        agent = Agent(pod, address)
        mates = [mate for mate in self.known.values() if mate.job_uid == agent.job_uid]
        if mates:
            agent.group = mates[0].group
        else:
            self.groups.append(agent.group)
        self.known[agent.uid] = agent
        self.check()
        if agent.group.outcome is not None:
            self.world.after(1.0, partial(self._exit, agent))

    def pod_removed(self, pod: Object) -> None:
        self.pod_stopped(pod["metadata"]["uid"])

    def pod_stopped(self, uid: str) -> None:
        if self.known.pop(uid, None) is not None:
            self.check()

    def container_restarted(self, uid: str) -> None:
        agent = self.known.get(uid)
        if agent is not None:
            agent.running = True
            self.check()

    def members(self, group: Group) -> list[Agent]:
        alive = {node.name for node in self.world.cluster.nodes if node.alive}
        return [a for a in self.known.values() if a.group is group and a.running and a.node in alive]

    # --- the group ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Brings every group in line with the pods that run."""
        for group in self.groups:
            members = frozenset(agent.uid for agent in self.members(group))
            if group.outcome is not None:
                continue
            if group.phase == "Running" and not group.members <= members:
                self._break(group, "pod", names.Reason.POD_LOST)
            if group.phase == "Rendezvous" and len(members) >= (group.least or group.replicas):
                self.world.after(self.world.rng.uniform(0.1, 1.0), partial(self._start, group, group.attempt))

    def _start(self, group: Group, last: int) -> None:
        lowest = sorted(self.members(group), key=lambda each: each.ordinal)[: group.replicas]
        members = frozenset(agent.uid for agent in lowest)
        if group.phase != "Rendezvous" or group.attempt != last or len(members) < (group.least or group.replicas):
            return
        group.attempt = max(group.floor, group.attempt + 1)
        group.phase, group.reason, group.members, group.since = "Running", "", members, self.world.clock()
        group.start_time = group.start_time if group.start_time is not None else self.world.wall()
        self.world.log_line(f"agents: attempt {group.attempt} is running")
        left = max(0.5, self.world.work - group.done)
        self.world.after(left, partial(self._finish, group, group.attempt))
        if self.world.rng.random() < self.world.failure_share and self.world.faults.active:
            self.world.after(self.world.rng.uniform(0.2, 10.0), partial(self.worker_fails, group, group.attempt))

    def work_ends(self) -> None:
        """Lets every running attempt end soon."""
        for group in self.groups:
            self.world.after(5.0, partial(self._finish, group, group.attempt))

    def worker_fails(self, group: Group, attempt: int) -> None:
        if group.phase != "Running" or group.attempt != attempt:
            return
        agent = self.members(group)[0]
        failure = {
            "attempt": attempt,
            "rank": 0,
            "ordinal": agent.ordinal,
            "pod": agent.name,
            "node": agent.node,
            "reason": names.Reason.WORKER_FAILED,
            "message": "rank 0 exited with 1",
            "exitCode": 1,
            "time": self.world.wall(),
        }
        group.failures.append(failure)
        group.restarts["counted"] += 1
        self._break(group, "inPlace", names.Reason.WORKER_FAILED)
        if group.restarts["counted"] > group.max_restarts:
            group.restarts["counted"] -= 1
            group.restarts["inPlace"] -= 1
            self._end(group, "Failed", names.Reason.RESTART_BUDGET_SPENT, "no restart is left")
        self.check()

    def _resize(self, group: Group, replicas: int) -> None:
        """Stops the attempt where pods that work have to go, or others have come; no restart is counted."""
        if group.replicas == replicas:
            return
        is_smaller, group.replicas = replicas < group.replicas, replicas
        if group.phase == "Running":
            group.done += (self.world.clock() - group.since) * 0.8
            group.phase = "Rendezvous"
            group.reason = names.Reason.GROUP_SHRUNK if is_smaller else names.Reason.GROUP_GROWN
        self.check()

    def _break(self, group: Group, kind: str, reason: str) -> None:
        group.done += (self.world.clock() - group.since) * 0.8
        group.phase, group.reason = "Rendezvous", reason
        group.restarts[kind] += 1

    def _finish(self, group: Group, attempt: int) -> None:
        if group.phase == "Running" and group.attempt == attempt:
            group.done += self.world.clock() - group.since
            self._end(group, "Succeeded", "AllWorkersSucceeded", "all ranks exited with 0")

    def _end(self, group: Group, result: str, reason: str, message: str) -> None:
        group.phase = "Finished"
        self.world.log_line(f"agents: {result} in attempt {group.attempt}")
        group.outcome = {
            "version": 1,
            "uid": group.job_uid,
            "result": result,
            "reason": reason,
            "message": message,
            "attempt": group.attempt,
            "restarts": dict(group.restarts),
            "failure": group.failures[-1] if group.failures and result == "Failed" else None,
            "progress": None,
            "checkpoint": None,
            "recoveries": [],
            "productiveSeconds": round(group.done, 3),
            "startTime": group.start_time,
            "time": self.world.wall(),
        }
        for agent in self.members(group):
            self.world.after(self.world.rng.uniform(0.1, 3.0), partial(self._exit, agent))

    def _exit(self, agent: Agent) -> None:
        outcome = agent.group.outcome
        if outcome is not None and agent.uid in self.known:
            agent.running = False
            code = 0 if outcome["result"] == "Succeeded" else 1
            self.world.cluster.container_ends(agent.uid, agent.name, code, json.dumps(outcome))

    def crash(self, agent: Agent) -> None:
        """Ends the agent's container without an outcome."""
        agent.running = False
        self.world.cluster.container_ends(agent.uid, agent.name, 137, "")
        self.check()

    @staticmethod
    def _member(group: Group, agent: Agent) -> Object:
        is_busy = group.phase == "Running" and agent.uid in group.members
        state = "running" if is_busy else "idle"
        return {"ordinal": agent.ordinal, "pod": agent.name, "address": agent.address, "state": state}

    # --- /status --------------------------------------------------------------------------------------------------

    def page(self, address: str, uid: str) -> Object | None:
        agent = next((a for a in self.known.values() if a.address == address), None)
        if agent is None or agent not in self.members(agent.group):
            return None
        group = agent.group
        job = self.world.job
        if group.least is not None and job is not None and job["metadata"]["uid"] == group.job_uid:
            resize = partial(self._resize, group, job["spec"]["replicas"])
            self.world.after(self.world.rng.uniform(0.1, 5.0), resize)
        since = self.world.clock() - group.since if group.phase == "Running" else 0.0
        page: Object = {
            "version": 1,
            "uid": group.job_uid,
            "ordinal": agent.ordinal,
            "attempt": group.attempt,
            "phase": group.phase,
            "phaseReason": group.reason,
            "replicas": len(group.members) if group.phase == "Running" else group.replicas,
            "members": [self._member(group, each) for each in self.members(group)],
            "restarts": dict(group.restarts),
            "recoveries": list(group.recoveries),
            "failures": list(group.failures)[-4:],
            "progress": {"step": int((group.done + since) * 10), "time": self.world.wall()} if since else None,
            "checkpoint": None,
            "events": [],
            "productiveSeconds": round(group.done + since, 3),
            "startTime": group.start_time,
            "outcome": group.outcome,
        }
        leader = min(self.members(group), key=lambda each: each.ordinal)
        page["leader"] = {
            "ordinal": leader.ordinal,
            "pod": leader.name,
            "address": leader.address,
            "epoch": group.attempt,
        }
        if self.world.agents_wait:
            page["statusVersion"] = status_version({"stragglers": [], "stepsUnknown": False, **page})  # type: ignore[typeddict-item]
        group.pages.append(page)
        return self.world.faults.of_page(page, group.pages)
