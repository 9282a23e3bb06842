"""A deterministic world for the operator: observe, plan and execute are the real ones; a seed replays it.

The world simulates the API server and its controllers, kubelets, nodes and the agents of one job,
on an event loop with a virtual clock, and these faults:

    the operator  is killed before or after any call, and starts again without memory; two run at once;
                  its clock is wrong
    calls         are answered by 409, 429 or 5xx, or by nothing, with the write applied or not
    watches       are up to 15 s late, each on its own; break, expire, or deliver events twice
    agents        are silent, or answer with an old page, an invalid one or another job's
    pods          are deleted, evicted or crash; nodes are lost or called sick; the quota is spent
    people        delete, edit or orphan children, take the name, suspend, resume, scale, change, delete
                  and recreate the job

simulated_checks.py has the invariants, which are checked at every write. When the faults stop, the
job must end as its agents reported, and a settled world must stay quiet.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from dtj_contract import names
from dtj_core.plan.conditions import is_true
from dtj_core.plan.model import Object, Settings
from dtj_operator.kube.resources import JOB, Resource
from tests.lib import virtual_time
from tests.unit.operator.simulated_agents import Agents
from tests.unit.operator.simulated_api import ApiServer
from tests.unit.operator.simulated_checks import Checks
from tests.unit.operator.simulated_cluster import Cluster
from tests.unit.operator.simulated_detector import Detector
from tests.unit.operator.simulated_faults import FAULT_SECONDS, Faults
from tests.unit.operator.simulated_operator import Operator

EPOCH = 1_790_000_000.0
PATIENCE_SECONDS = 1500.0
QUIET_SECONDS = 180.0
RECONCILES_A_MINUTE = 20
LATENESS_SECONDS = 3.0
"""By which a report of progress may be late, so that the next write follows sooner."""


class Violation(AssertionError):
    """An invariant does not hold; the message has the seed."""


class _Keep(AbstractContextManager["_Keep"]):
    """Keeps the first exception of a world, which ends its run."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        self._world.violation = self._world.violation or error
        return True


class World:
    name = "digits"

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.log: list[str] = []
        self.settings = Settings(
            agent_image="agent:1",
            master_key=b"key",
            progress_write_seconds=self.rng.choice((20.0, 30.0)),
        )
        self.agents_wait = self.rng.random() < 0.7
        """Whether requests for /status wait for a change; else they are answered at once, as by older agents."""
        self.is_long = self.rng.random() < 0.15
        """Whether the training runs until the world has been quiet."""
        self.work = 1e6 if self.is_long else self.rng.uniform(3.0, 100.0)
        self.failure_share = self.rng.choice((0.0, 0.3, 0.9))
        self.wish = self.rng.choice(("run", "run", "run", "run", "run", "suspend", "suspend", "delete"))
        """The state that the user wants at last."""
        self.is_recreating = False
        self.reconciles = 0
        self.writes: list[tuple[float, str]] = []
        """The operator's writes, but for events."""
        self.foreign: Object | None = None
        self.operators: list[Operator] = []
        self._closed: list[Operator] = []
        self._started = 0
        self.violation: BaseException | None = None

    # --- clocks ---------------------------------------------------------------------------------------------------

    def clock(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return EPOCH + self.clock()

    def latency(self) -> float:
        return self.rng.choice((0.001, 0.01, 0.2))

    def after(self, seconds: float, call: Callable[[], Any]) -> None:
        def run() -> None:
            with _Keep(self):
                call()

        asyncio.get_running_loop().call_later(seconds, run)

    # --- records --------------------------------------------------------------------------------------------------

    def log_line(self, text: str) -> None:
        self.log.append(f"{self.clock():8.2f} {text}")

    def fail(self, text: str) -> NoReturn:
        error = Violation("\n".join((*self.log[-60:], f"seed {self.seed} at {self.clock():.2f}: {text}")))
        self.violation = self.violation or error
        raise error

    def written(self, verb: str, resource: Resource, what: str) -> None:
        self.log_line(f"operator: {verb} {resource.kind} {what}")
        if resource.kind != "Event":
            self.writes.append((self.clock(), f"{verb} {resource.plural} {what}"))

    # --- the operator ---------------------------------------------------------------------------------------------

    def start_operator(self) -> Operator:
        self._started += 1
        operator = Operator(self, self._started)
        self.operators.append(operator)
        self.log_line(f"operator {operator.number} starts")
        return operator

    def start_second_operator(self) -> None:
        second = self.start_operator()
        self.after(self.rng.uniform(3.0, 40.0), lambda: self.kill(second, again=False))

    def kill(self, operator: Operator, *, again: bool = True) -> None:
        if operator.dead:
            return
        operator.dead = True
        for task in operator.tasks:
            task.cancel()
        self.operators.remove(operator)
        self._closed.append(operator)
        self.log_line(f"operator {operator.number} is killed")
        if again or not self.operators:
            self.after(self.rng.uniform(0.2, 15.0), self._restart)

    def _restart(self) -> None:
        if not self.operators:
            self.start_operator()

    # --- the job --------------------------------------------------------------------------------------------------

    @property
    def job(self) -> Object | None:
        return self.api.find(JOB.plural, self.name)

    def create_job(self) -> None:
        rng = self.rng
        restart = {
            "maxRestarts": rng.choice((0, 1, 3, 100)),
            "windowSeconds": 3600,
            "avoidNodes": {"afterFailures": rng.choice((0, 1, 3)), "forSeconds": 3600},
        }
        spec: Object = {
            "replicas": rng.choice((1, 2, 3, 4)),
            "image": "trainer:cpu",
            "entrypoint": {"module": "train"},
            "restart": restart,
            "suspend": rng.random() < 0.15 if self.faults.active else self.wish == "suspend",
            "cleanPodPolicy": rng.choice(("All", "All", "None")),
            "forceDeletePods": rng.choice(("WhenFenced", "Always", "Never")),
        }
        if rng.random() < 0.5:
            spec["checkpoint"] = {"volume": {"claimName": "shared"}}
        if rng.random() < 0.15:
            spec["ttlSecondsAfterFinished"] = 20
        if rng.random() < 0.15:
            spec["activeDeadlineSeconds"] = rng.choice((30, 300))
        if rng.random() < 0.1:
            spec["startupDeadlineSeconds"] = rng.choice((5, 60))
        kind = rng.random()
        if kind < 0.25:
            spec["spares"] = rng.choice((1, 2))
        elif kind < 0.5:
            spec["elastic"] = {"minReplicas": 1, "maxReplicas": 4}
        body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": self.name}, "spec": spec}
        self.api.create(JOB, body)
        self.log_line(f"the job is created: {spec}")

    def create_job_when_free(self) -> None:
        self.is_recreating = self.job is not None
        if self.job is None:
            self.create_job()
            if not self.faults.active:
                self.faults.remove_orphans()
        else:
            self.after(0.5, self.create_job_when_free)

    # --- the run --------------------------------------------------------------------------------------------------

    def run(self) -> World:
        """Runs the world to its end. Raises Violation."""
        logger = logging.getLogger("dtj_operator")
        level, logger.level = logger.level, logging.CRITICAL + 1
        disabled, logger.disabled = logger.disabled, True
        logging.disable(logging.CRITICAL)
        try:
            virtual_time.run(self._main())
        finally:
            logging.disable(logging.NOTSET)
            logger.level, logger.disabled = level, disabled
        if self.violation is not None:
            raise self.violation
        return self

    async def _main(self) -> None:
        with _Keep(self):
            await self._live()
        for operator in [*self.operators, *self._closed]:
            await operator.close()

    async def _live(self) -> None:
        self.api = ApiServer(self.wall)
        self.cluster = Cluster(self)
        self.agents = Agents(self)
        self.checks = Checks(self)
        self.faults = Faults(self)
        self.detector = Detector(self)
        self._changed = asyncio.Event()
        self.api.listeners += [self.cluster.changed, self._watched]
        self.create_job()
        self.start_operator()
        await self._pass(FAULT_SECONDS)
        self.faults.stop()
        # Else the wish would meet the old job, and the new one would run.
        await self._until("the job is recreated", lambda: not self.is_recreating)
        self.log_line(f"the faults stop; the user wants: {self.wish}")
        if self.wish == "delete":
            self.faults.delete_job()
        else:
            self.faults.edit_job(suspend=self.wish == "suspend")
        if self.is_long and self.wish == "run":
            await self._run_quietly()
        if self.is_long and self.wish != "suspend":
            self.work = 0.0
            self.agents.work_ends()
        await self._until("the world settles", self.checks.is_settled)
        # Events of the last write may follow it.
        await self._pass(30.0)
        await self._stay_quiet(0)
        if not self.checks.is_settled():
            self.fail("the world was settled, and is no longer")
        self.checks.end()

    def _watched(self, plural: str, kind: str, found: Object) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def change_beyond(self, plural: str, version: int) -> None:
        """Returns once an object of this kind has changed after `version`."""
        while not any(at > version for at, _, _ in self.api.changes.get(plural, ())[-1:]):
            await self._changed.wait()

    async def _run_quietly(self) -> None:
        """Waits until the training runs, and checks that the operator then writes little."""

        def runs() -> bool:
            job = self.job
            return self.checks.is_settled() or (job is not None and is_true(job.get("status", {}), names.RUNNING))

        await self._until("the training runs", runs)
        await self._pass(120.0)  # back-offs end, kept reads become old
        await self._stay_quiet(60.0 / (self.settings.progress_write_seconds - 2 * LATENESS_SECONDS))

    async def _stay_quiet(self, writes_a_minute: float) -> None:
        began, writes, reconciles = self.clock(), len(self.writes), self.reconciles
        ended = len(self.checks.ended)
        await self._pass(QUIET_SECONDS)
        minutes = (self.clock() - began) / 60.0
        new = self.writes[writes:]
        # A deadline may end the job meanwhile: its status is written, and what it had is deleted.
        ends = len(self.checks.ended) - ended
        if ends:
            new = [(at, what) for at, what in new if not what.startswith("delete ")]
        if len(new) > writes_a_minute * minutes + 1 + ends:
            self.fail(f"{len(new)} writes in {minutes:g} quiet minutes: {new}")
        if self.reconciles - reconciles > RECONCILES_A_MINUTE * minutes:
            self.fail(f"{self.reconciles - reconciles} reconciles in {minutes:g} quiet minutes")

    async def _until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = self.clock() + PATIENCE_SECONDS
        while not condition():
            if self.clock() > deadline:
                job = self.job
                self.fail(f"{what}: not within {PATIENCE_SECONDS:g} s; status {job and job.get('status')}")
            await self._pass(1.0)

    async def _pass(self, seconds: float) -> None:
        end = self.clock() + seconds
        while self.violation is None and self.clock() < end:
            await asyncio.sleep(min(1.0, end - self.clock()))
        if self.violation is not None:
            raise self.violation
