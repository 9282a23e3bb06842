"""Finds the agent that leads a job's group: which pod to ask next, and which answer to use. Pure.

Any agent may lead. One poll asks at most three agents: the one that led last, another if that one
is silent or may have been deposed, and the one that an answer names as the leader. Only pods of the
job's own StatefulSet are asked, looked up by the name in the answer and never by its address,
because each receives the job's token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dtj_contract import agent_status
from dtj_core.plan.agent_report import leader_of, sanitize
from dtj_core.plan.job import is_owned
from dtj_core.plan.model import Object
from dtj_core.plan.pods import ordinal

# A leader in one of these phases is asked alone: without its followers it could not be there.
SETTLED = (agent_status.RUNNING, agent_status.FINISHED)


@dataclass(frozen=True)
class Answer:
    """The page of one agent."""

    pod: str
    page: Object
    leader: str
    """Name of the pod that leads as far as this agent knows; empty: not known."""
    epoch: int
    attempt: int

    @property
    def leads(self) -> bool:
        return self.leader == self.pod

    @property
    def is_settled(self) -> bool:
        """Whether no other agent needs to be asked."""
        return self.leads and self.page.get("phase", agent_status.RUNNING) in SETTLED


class LeaderSearch:
    """The state of one poll. `next` returns the pod to ask, `add` takes its answer."""

    def __init__(self, pods: Sequence[Object], hint: str, silent: Mapping[str, float]) -> None:
        """Takes the pods that may be asked.

        `hint`: name of the pod that led last. `silent`: when the pods that did not answer were asked.
        """

        def rank(pod: Object) -> tuple[float, bool, int]:
            name = pod_name(pod)
            return (silent.get(name, float("-inf")), name != hint, ordinal(pod))

        self._pods = sorted(pods, key=rank)
        self._asked: set[str] = set()
        self._answers: list[Answer] = []
        self._redirected = self._fell_back = False
        self.avoided: set[str] = set()
        """Silent pods that are asked only if no other pod has answered."""

    def next(self) -> Object | None:
        """Returns the pod to ask next; None if the answers suffice, or no other agent may be asked."""
        found = self._next()
        if found is not None:
            self._asked.add(pod_name(found))
        return found

    def has_more(self) -> bool:
        """Returns whether another pod could be asked in this poll."""
        return not (self._redirected and self._fell_back) and len(self._asked) < len(self._pods)

    def add(self, pod: Object, page: Object) -> None:
        self._answers.append(read_answer(pod, page))

    def best(self) -> Answer | None:
        """Returns the answer of the leader, else of the agent that knows most; None without an answer."""
        return max(self._answers, key=lambda each: (each.epoch, each.leads, each.attempt), default=None)

    @property
    def answered(self) -> list[str]:
        return [answer.pod for answer in self._answers]

    def _next(self) -> Object | None:
        best = self.best()
        others = [pod for pod in self._pods if pod_name(pod) not in self._asked]
        if best is None:
            if self._asked:
                if self._fell_back:
                    return None
                self._fell_back = True
            return next(iter(others), None)
        others = [pod for pod in others if pod_name(pod) not in self.avoided]
        named = next((pod for pod in others if pod_name(pod) == best.leader), None)
        if named is not None and not self._redirected:
            self._redirected = True
            return named
        if self._fell_back or best.is_settled:
            return None
        self._fell_back = True
        return next(iter(others), None)


def read_answer(pod: Object, page: Object) -> Answer:
    """Returns the page of a pod's agent, and whom that agent takes for the leader."""
    name = pod_name(pod)
    numbers = sanitize(page, {"attempt": "int"})
    if "leader" in page:
        leader = leader_of(page)
        named, epoch = leader.get("pod", ""), leader.get("epoch", 0)
    else:  # an agent before epochs, of which ordinal 0 coordinates
        named, epoch = name.rpartition("-")[0] + "-0", 0
    return Answer(name, page, named, epoch, numbers.get("attempt", 0))


def reachable_pods(job: Object, stateful_set: Object | None, pods: Sequence[Object]) -> tuple[Object, ...]:
    """Returns the pods that have an address and a running container, by ordinal.

    Only pods that the job's own StatefulSet created are returned, because they receive the job's
    token and their answers are trusted.
    """
    if stateful_set is None or not is_owned(stateful_set, job["metadata"]["uid"]):
        return ()
    uid = stateful_set["metadata"]["uid"]
    found = [pod for pod in pods if is_owned(pod, uid) and ordinal(pod) >= 0 and _is_reachable(pod)]
    return tuple(sorted(found, key=ordinal))


def pod_name(pod: Object) -> str:
    return str(pod["metadata"]["name"])


def _is_reachable(pod: Object) -> bool:
    status = pod.get("status", {})
    containers = status.get("containerStatuses", [])
    return bool(status.get("podIP")) and any("running" in each.get("state", {}) for each in containers)
