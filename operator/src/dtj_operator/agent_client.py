"""Requests to the agents of a job: `GET /status`, at once or when something has changed.

A request hands over what the agents can't know: the budget and the size that the job's spec has
now, and why Kubernetes ended pods.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote

import aiohttp

from dtj_contract.agent_status import KEPT_SECONDS
from dtj_contract.operator_message import HEADER
from dtj_contract.status_token import CLOCK_HEADER
from dtj_core.plan import agent_silence
from dtj_core.plan.agent_keys import agent_key
from dtj_core.plan.leader_search import Answer, LeaderSearch, pod_name
from dtj_core.plan.model import Object, Settings
from dtj_operator.agent_proof import AS_NEW, Proof, next_proof
from dtj_operator.following.retry import retry_seconds
from dtj_operator.kube.resources import job_key

STATUS_SECONDS = 1.0
"""Deadline of a search, and of a connection."""
ANSWER_MARGIN_SECONDS = 3.0
"""Beyond the wait that was requested: the agent or this process may be starved."""
STATUS_BYTES = 256 * 1024

# The results of a request, as labels of the metric.
ANSWERED, UNREACHABLE, REFUSED, INVALID = RESULTS = (
    "answered",
    agent_silence.SILENT,
    agent_silence.REFUSED,
    agent_silence.INVALID,
)

logger = logging.getLogger(__name__)


class Unanswered(Exception):
    """No usable answer. `result` is one of RESULTS."""

    def __init__(self, result: str, message: str, *, is_late: bool = False) -> None:
        super().__init__(message)
        self.result = result
        self.is_late = is_late
        """Whether the connection stayed silent; else its end was noticed."""


class _Unauthorized(Unanswered):
    """The agent did not take the token. `clock`: its Unix time; None if it did not show any."""

    def __init__(self, clock: float | None) -> None:
        super().__init__(REFUSED, "answered 401 to GET /status")
        self.clock = clock


@dataclass(frozen=True)
class Silence:
    """The silence of one pod's agent, or of all agents of a job."""

    since: float
    asked: float
    result: str


@dataclass
class _Agents:
    """Memory of one job's agents, which only saves requests."""

    leader: str = ""
    """Name of the pod whose agent led at the last answer."""
    known: dict[str, tuple[object, ...]] = field(default_factory=dict)
    """By pod name: a value that changes when another agent may be running in the pod."""
    silent: dict[str, Silence] = field(default_factory=dict)
    """By pod name."""
    all_silent: Silence | None = None
    """Set while no agent of the job answers."""
    proofs: dict[str, Proof] = field(default_factory=dict)
    """By pod name: the last one that its agent took."""
    proof: Proof = AS_NEW
    """The last one of any agent of the job."""

    def see(self, pods: Sequence[Object]) -> None:
        """Forgets the silence of the pods that are gone or may have another agent."""
        seen = {pod_name(pod): agent_identity(pod) for pod in pods}
        changed = {name for name in self.silent if seen.get(name) != self.known.get(name)}
        self.silent = {name: silence for name, silence in self.silent.items() if name not in changed}
        if changed:
            self.all_silent = None
        self.proofs = {name: proof for name, proof in self.proofs.items() if name in seen}
        self.known = seen

    def add_silence(self, name: str, now: float, result: str) -> None:
        before = self.silent.get(name)
        self.silent[name] = Silence(now if before is None else before.since, now, result)


class AgentClient:
    """The connections to all agents. Create it on the event loop that uses it.

    The start of a silence is remembered only here, so after a restart of the operator the silence
    counts from the first request.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        seconds: float = STATUS_SECONDS,
        count: Callable[[str], None] = lambda result: None,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._seconds = seconds
        self._count = count
        self.now = now
        self._wall = wall
        self._jobs: dict[tuple[str, str], _Agents] = {}
        # As many connections as jobs run. Whoever opens them bounds how many at a time.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_SECONDS / 2)
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))

    async def close(self) -> None:
        await self._session.close()

    def silence(self, job: Object) -> Silence | None:
        """Returns since when no agent of the job has answered; None after an answer."""
        agents = self._jobs.get(job_key(job))
        return agents.all_silent if agents is not None else None

    def silent_seconds(self, job: Object) -> float:
        """Returns for how long no agent of the job has answered; 0 after an answer."""
        silence = self.silence(job)
        return 0.0 if silence is None else self.now() - silence.since

    def see(self, job: Object, reachable: Sequence[Object]) -> None:
        """Forgets the silence of pods that are gone, or whose agent may be another one."""
        self._jobs.setdefault(job_key(job), _Agents()).see(reachable)

    def keep_only(self, keys: Iterable[tuple[str, str]]) -> None:
        """Drops the agents of all other jobs."""
        wanted = set(keys)
        self._jobs = {key: agents for key, agents in self._jobs.items() if key in wanted}

    def forget(self, key: tuple[str, str]) -> None:
        """Drops the agents of one job."""
        self._jobs.pop(key, None)

    async def search(
        self, job: Object, reachable: Sequence[Object], message: str, *, heard: float | None = None
    ) -> Answer | None:
        """Returns the leader's answer, or the best of another agent; None without a usable answer.

        `reachable`: the pods whose agents may be asked (reachable_pods). `message`: what is handed over
        (operator_message). `heard`: when an agent of the job was last known to answer; a new silence counts from
        there. The agents may be starting or stopping, or their nodes may be gone; the planner copes without.
        """
        agents = self._jobs.setdefault(job_key(job), _Agents())
        agents.see(reachable)
        silence, now = agents.all_silent, self.now()
        hint = agents.leader or str((job.get("status") or {}).get("coordinator") or "")
        search = LeaderSearch(reachable, hint, {name: each.asked for name, each in agents.silent.items()})
        search.avoided = {
            name for name, each in agents.silent.items() if now - each.asked < retry_seconds(each.asked - each.since)
        }
        failures = await self._search(job, search, message)
        for name, error in failures:
            agents.add_silence(name, now, error.result)
        for name in search.answered:
            agents.silent.pop(name, None)
        best = search.best()
        if best is None:
            name, error = failures[0]
            self._count(error.result)
            since = silence.since if silence is not None else now if heard is None else heard
            agents.all_silent = Silence(since, now, error.result)
            self._log_silence(name, error, silence)
            return None
        self._count(ANSWERED)
        if silence is not None:
            agents.all_silent = None
            logger.info("the agent of pod %s answers again", best.pod)
        agents.leader = best.leader
        return best

    async def listen(self, job: Object, pod: Object, message: str, after: str, wait: float) -> Object:
        """Returns the page of one agent once its version is not `after`, at the latest after about `wait` seconds.

        Raises Unanswered.
        """
        limit = wait + self._seconds + ANSWER_MARGIN_SECONDS
        try:
            async with asyncio.timeout(limit):
                page = await self._ask_with_any_proof(job, pod, message, after, wait)
        except TimeoutError:
            error = Unanswered(UNREACHABLE, f"has not answered for {limit:g} s", is_late=True)
            self._count(error.result)
            raise error from None
        except Unanswered as error:
            self._count(error.result)
            raise
        self._count(ANSWERED)
        return page

    async def _search(self, job: Object, search: LeaderSearch, message: str) -> list[tuple[str, Unanswered]]:
        """Asks one agent after the other, all within the time of one search. Returns the failures by pod name."""
        failures: list[tuple[str, Unanswered]] = []
        ends = asyncio.get_running_loop().time() + self._seconds
        while (pod := search.next()) is not None:
            left = ends - asyncio.get_running_loop().time()
            if left <= 0 and (failures or search.answered):
                break  # an agent that has no time to answer is not silent
            # Leaves time for another agent, if this one is silent.
            limit = left / 2 if search.has_more() else left
            try:
                async with asyncio.timeout(limit):
                    search.add(pod, await self._ask_with_any_proof(job, pod, message, "", 0.0))
            except TimeoutError:
                failures.append((pod_name(pod), Unanswered(UNREACHABLE, "is unreachable: TimeoutError")))
            except Unanswered as error:
                failures.append((pod_name(pod), error))
        return failures

    def _log_silence(self, pod: str, error: Unanswered, before: Silence | None) -> None:
        """Logs a search that no agent answered, unless the previous one failed in the same way."""
        if before is None or before.result != error.result:
            # Every agent is unreachable for a moment while its pod starts.
            level = logging.DEBUG if error.result == UNREACHABLE else logging.WARNING
            logger.log(level, "the agent of pod %s %s", pod, error)

    def with_previous_key(self) -> int:
        """Returns the number of jobs whose agents take the previous master key only."""
        return sum(agents.proof.previous_key for agents in self._jobs.values())

    async def _ask_with_any_proof(self, job: Object, pod: Object, message: str, after: str, wait: float) -> Object:
        agents, name = self._jobs.setdefault(job_key(job), _Agents()), pod_name(pod)
        proof = agents.proofs.get(name, agents.proof)
        has_previous = self._settings.previous_master_key is not None
        tried = {proof}
        while True:
            try:
                page = await self._ask(job, pod, message, after, wait, proof)
            except _Unauthorized as error:
                other = next_proof(proof, error.clock, self._wall(), tried, has_previous)
                if other is None:
                    agents.proofs.pop(name, None)
                    raise
                proof = other
                tried.add(proof)
                continue
            agents.proof = agents.proofs[name] = proof
            return page

    async def _ask(self, job: Object, pod: Object, message: str, after: str, wait: float, proof: Proof) -> Object:
        """Requests the status once. Raises Unanswered."""
        address = pod["status"]["podIP"]
        uid = job["metadata"]["uid"]
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{self._settings.agent_port}/status?after={quote(after)}&wait={wait:.0f}"
        token = proof.token(self._key(uid, proof.previous_key), self._wall(), message)
        headers = {"Authorization": "Bearer " + token, HEADER: message}
        try:
            async with self._session.get(url, headers=headers, allow_redirects=False) as response:
                if response.status == 401:
                    clock = response.headers.get(CLOCK_HEADER, "")[:12]
                    raise _Unauthorized(float(clock) if clock.isdecimal() else None)
                if response.status != 200:
                    raise Unanswered(REFUSED, f"answered {response.status} to GET /status")
                text = bytearray()
                async for part in response.content.iter_any():
                    text += part
                    if len(text) > STATUS_BYTES:  # a pod may send anything
                        raise Unanswered(INVALID, f"answered more than {STATUS_BYTES} bytes")
        except (aiohttp.ClientError, asyncio.IncompleteReadError, OSError) as error:
            raise Unanswered(UNREACHABLE, f"is unreachable: {str(error) or type(error).__name__}") from error
        try:
            report = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Unanswered(INVALID, f"answered with invalid JSON: {error}") from error
        if not isinstance(report, dict) or report.get("uid") != uid:
            raise Unanswered(INVALID, f"at {address} belongs to another job")
        return report

    def _key(self, uid: str, with_previous: bool) -> str:
        previous = self._settings.previous_master_key
        if previous is None or not with_previous:
            return agent_key(uid, self._settings)
        return agent_key(uid, replace(self._settings, master_key=previous))


def agent_identity(pod: Object) -> tuple[object, ...]:
    """Returns a value that changes when another agent may be running in the pod.

    A new agent may be silent for another reason, or answer.
    """
    status = pod.get("status", {})
    starts = (
        container.get("state", {}).get("running", {}).get("startedAt")
        for container in status.get("containerStatuses", [])
    )
    return (pod["metadata"].get("uid"), status.get("podIP"), *starts)
