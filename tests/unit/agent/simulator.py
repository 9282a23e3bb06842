"""A deterministic world for the two state machines, which are the real ones; a seed replays it.

The world simulates a clock, a network, volumes, processes and pods, and these faults:

    links     break (noticed at once or after the heartbeat's silence)
    messages  take their time: in order on one link, in any order between links
    workers   die, hang, finish, or can't be killed
    agents    crash, between two effects of one decision too
    pods      are deleted, evicted, lost with their disks, or replaced while the old pod lives on
    names     lead to the old pod for a while
    leases    are written by the real algorithm to a volume that is slow or fails between two operations
    clocks    of pods differ by up to an hour
    sizes     of elastic groups change; some groups have spares (simulated_sizes.py)
    moves     to other nodes are requested by a restart rule (simulated_moves.py)

Rank 0 reports steps and checkpoints (simulated_training.py).

The invariants are checked after every event. When the faults stop, the job must end, and every pod
must hold the same outcome. simulated.py has the parts.
"""

from __future__ import annotations

import errno
import heapq
from functools import partial
from typing import Any

from dtj_agent.files.lease_file import claim
from dtj_agent.group import effects as coordinator_effects
from dtj_agent.group import member
from dtj_agent.group.coordinator import Coordinator
from dtj_agent.group.group_spec import GroupSpec
from dtj_agent.group.messages import FINISHED, STUCK
from dtj_agent.group.worker_exit import WorkerExit
from dtj_contract import names
from tests.unit.agent import simulated_faults as faults
from tests.unit.agent.lease_volume import DictFolder, Died
from tests.unit.agent.simulated import AWAY_SECONDS, UID, Network, Pod, Worker
from tests.unit.agent.simulated_counts import are_alike, check_counted, is_remembered
from tests.unit.agent.simulated_faults import FAULT_SECONDS
from tests.unit.agent.simulated_moves import Moves
from tests.unit.agent.simulated_sizes import Sizes
from tests.unit.agent.simulated_success import Success
from tests.unit.agent.simulated_training import Training

PATIENCE_SECONDS = 400.0
LARGE_SIZES = (24, 64)
LARGE_SHARE = 0.002
"""Of the worlds have 24 or 64 members, which cost as much as dozens of others."""


class World(Network):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = self.rng
        # Pods, spares too.
        self.replicas = rng.choice((1, 2, 2, 3, 3, 4, 6, 12))
        if rng.random() < LARGE_SHARE:
            self.replicas = rng.choice(LARGE_SIZES)
        self.processes = rng.choice((1, 2))
        self.spec = GroupSpec(UID, self.replicas, self.processes, max_restarts=rng.choice((0, 3, 100)), window=3600.0)
        self.work = rng.uniform(1.0, 20.0)
        self.has_volume = rng.random() < 0.5
        self.spec = self.spec._replace(has_volume=self.has_volume)
        self.sizes = Sizes(self)
        self.moves = Moves(self)
        self.success = Success(self)
        self.folder = DictFolder(self.before_operation)
        self.training = Training(self)
        self.started: list[int] = []
        self.faults: dict[int, list[str]] = {}
        """The faults that hit the group while an attempt was the last one."""
        self.ran: dict[int, list[Pod]] = {}
        """The pods that ran an attempt."""
        self.failed: set[int] = set()
        """Attempts with a worker that ended by itself."""
        self.outcomes: list[dict[str, Any]] = []
        self.pods = [Pod(self, ordinal) for ordinal in range(self.replicas)]
        self.names = list(self.pods)
        self.group: dict[int, dict[int, Worker]] = {}  # attempt -> rank -> worker

    # --- effects --------------------------------------------------------------------------------------------------

    def coordinator_does(self, pod: Pod, effects: list[coordinator_effects.Effect]) -> None:
        if pod.is_gone:
            return
        self.moves.look(pod)
        starts = [e for e in effects if isinstance(e, coordinator_effects.Send) and e.message["type"] == "start"]
        if starts:
            self.check_start(pod, starts)
        life, coordinator = pod.life, pod.coordinator
        for effect in effects:
            if self.crashes(pod, life) or pod.coordinator is not coordinator:
                return
            if isinstance(effect, coordinator_effects.Send):
                if effect.conn in pod.conns:
                    self.deliver(pod.conns[effect.conn], False, effect.message)
            elif isinstance(effect, coordinator_effects.Close):
                if effect.conn in pod.conns:
                    link = pod.conns.pop(effect.conn)
                    self.cut(link)
            elif isinstance(effect, coordinator_effects.WriteLease):
                write = partial(self.write_lease, pod, coordinator, effect.attempt)
                self.after(self.rng.choice((0.0, 0.02, 2.0)), pod.life_of(write))
            elif isinstance(effect, coordinator_effects.StepDown):
                if effect.history is not None:
                    self.member_does(pod, pod.member.learn(effect.history))
                if not self.crashes(pod, life):
                    pod.elect(pod.election.stepped_down(effect.why, self.time))
            else:
                self.log_line(f"  coordinator in {pod}: {effect.text}")

    def crashes(self, pod: Pod, life: int) -> bool:
        """Returns whether the agent is gone between two effects of one decision."""
        if not pod.alive or pod.life != life:
            return True
        is_struck = self.time < FAULT_SECONDS and not pod.leaving and self.rng.random() < 0.0005
        if is_struck and faults.may_be_away(self, pod):
            faults.note(self, "agent", pod)
            self.bring_back(pod, keep_disk=True)
            return True
        return False

    def write_lease(self, pod: Pod, coordinator: Coordinator, attempt: int) -> None:
        taken, error = None, None
        try:
            taken = claim(self.folder, attempt)
        except OSError as problem:
            error = str(problem.strerror)
        except Died:
            faults.note(self, "agent", pod)
            self.bring_back(pod, keep_disk=True)
            return
        if pod.coordinator is coordinator:
            self.coordinator_does(pod, coordinator.lease_done(attempt, taken, error, self.now(pod)))

    @property
    def lease(self) -> int:
        """The number in the lease file."""
        return self.folder.lease

    def before_operation(self, operation: str) -> None:
        """Lets an operation on the volume fail, or the agent die before it."""
        chance = self.rng.random() if self.time < FAULT_SECONDS else 1.0
        if chance < 0.002:
            raise Died
        if chance < 0.03 and operation != "remove":
            raise OSError(errno.EIO, "Input/output error")

    def member_does(self, pod: Pod, effects: list[member.Effect]) -> None:
        life = pod.life
        for effect in effects:
            if self.crashes(pod, life):
                return
            if isinstance(effect, member.SendToCoordinator):
                pod.send_up(effect.message)
            elif isinstance(effect, member.Spawn):
                self.spawn(pod, effect)
            elif isinstance(effect, member.Stop):
                self.stop(pod, effect.grace)
            elif isinstance(effect, member.Save):
                pod.saved = pod.member.saved()
            elif isinstance(effect, member.Finish):
                self.finish(pod, effect.outcome)
            elif isinstance(effect, member.Forget):
                pod.final = None
            elif isinstance(effect, member.Exit):
                self.exit(pod, effect.code, self.time + names.FAREWELL_SECONDS)
            else:
                self.log_line(f"  pod {pod}: {effect.text}")

    def finish(self, pod: Pod, final: dict[str, Any]) -> None:
        if pod.final is not None and pod.final != final:
            self.fail(f"the outcome of pod {pod} changed")
        pod.final = final
        if final["result"] == "Succeeded":
            self.success.check(final["attempt"])
        if pod.is_twin:
            return  # nothing reads its outcome
        self.training.check(final)
        if final["result"] == "Succeeded":
            check_counted(self, final)
        self.outcomes.append(final)
        if any(not are_alike(self, outcome, self.outcomes[0]) for outcome in self.outcomes):
            self.fail(f"two outcomes: {self.outcomes}")

    def exit(self, pod: Pod, code: int, deadline: float) -> None:
        waiting = pod.coordinator is not None and pod.coordinator.outcome is not None and not pod.coordinator.released
        if waiting and self.time < deadline:
            self.after(0.02, pod.life_of(lambda: self.exit(pod, code, deadline)))
            return
        self.log_line(f"pod {pod}: the agent exits with {code}")
        pod.is_gone = True
        if any(worker.exit_code is None and not worker.held for worker in pod.workers.values()):
            self.fail(f"pod {pod}: the agent exits while workers run")

        def gone() -> None:
            # A leaving pod may be the first with an outcome: the operator reads it from its status.
            keeps = not pod.leaving or pod.final is not None
            # New pods that do not meet the last one that remembers begin the job again; an operator prevents that.
            longest = AWAY_SECONDS if faults.may_be_away(self, pod) else 1.0
            self.bring_back(pod, keep_disk=keeps, longest=longest)

        self.after(0.2, pod.life_of(gone))  # its last messages are on their way

    # --- workers --------------------------------------------------------------------------------------------------

    def spawn(self, pod: Pod, effect: member.Spawn) -> None:
        if any(worker.exit_code is None for worker in pod.workers.values()):
            self.fail(f"pod {pod} runs two attempts at once")
        first = effect.node_rank * self.processes
        pod.workers = {rank: Worker(rank, effect.attempt) for rank in range(first, first + self.processes)}
        pod.member.spawned(list(pod.workers))
        world = self.group.setdefault(effect.attempt, {})
        if set(world) & set(pod.workers):
            self.fail(f"attempt {effect.attempt} has a rank twice")
        world.update(pod.workers)
        self.ran.setdefault(effect.attempt, []).append(pod)
        if 0 in pod.workers:
            self.training.begin(pod, effect.attempt)
        for worker in pod.workers.values():
            self.after(self.work * self.rng.uniform(0.9, 1.1), partial(self.complete, pod, worker))

    def complete(self, pod: Pod, worker: Worker) -> None:
        """Ends a rank with 0 if all the others can finish too; else the rank hangs in a collective."""
        if self.has_volume and self.lease > worker.attempt:  # its last checkpoint can't be committed
            return self.end(pod, worker, 1)
        mates = self.group[worker.attempt]
        whole = len(mates) == self.sizes.workers(worker.attempt)
        able = all(mate.exit_code in (None, 0) and not mate.held for mate in mates.values())
        if worker.exit_code is None and whole and able:
            self.end(pod, worker, 0)
        return None

    def end(self, pod: Pod, worker: Worker, code: int) -> None:
        if worker.exit_code is not None or worker.held:
            return
        worker.exit_code = code
        if code != 0 and not worker.requested:
            self.log_line(f"pod {pod}: rank {worker.rank} of attempt {worker.attempt} ends with {code}")
            self.workers_die(pod, [worker])
        self.success.ended(worker)
        exited = WorkerExit(worker.rank, code, worker.requested, "", False)
        self.member_does(pod, pod.member.exited(worker.attempt, [exited], self.now(pod)))

    def workers_die(self, pod: Pod, workers: list[Worker]) -> None:
        """Ends the workers. Their peers lose a connection: some fail of that, some hang."""
        for worker in workers:
            worker.exit_code = worker.exit_code if worker.exit_code is not None else -9
            for other in self.everyone:
                for mate in other.workers.values():
                    if mate.attempt == worker.attempt and mate.exit_code is None and self.rng.random() < 0.5:
                        self.after(self.rng.uniform(0.0, 0.1), other.life_of(partial(self.end, other, mate, 1)))

    def stop(self, pod: Pod, grace: float) -> None:
        for worker in pod.workers.values():
            if worker.exit_code is None and worker.held:
                worker.requested = True
                self.after(grace + names.STUCK_SECONDS, pod.life_of(lambda: self.held(pod)))
            elif worker.exit_code is None:
                worker.requested = True
                dies = self.rng.choice((0.0, 0.01, grace, grace))
                self.after(min(dies, grace), pod.life_of(lambda w=worker: self.end(pod, w, -15)))  # type: ignore[misc]
        self.after(grace + 0.02, pod.life_of(lambda: self.swept(pod)))
        self.swept(pod)

    def hold(self, worker: Worker) -> None:
        """Puts the worker into a system call that hangs.

        A peer that waits for it in a collective fails after a while.
        """
        workers = [(p, mate) for p in self.everyone for mate in p.workers.values()]
        mates = [(p, mate) for p, mate in workers if mate.attempt == worker.attempt and mate != worker]
        waiting = [(p, mate) for p, mate in mates if mate.exit_code is None and not mate.held]
        if waiting and worker.exit_code is None:
            pod, mate = self.rng.choice(waiting)
            worker.held = True
            self.after(self.rng.uniform(1.0, 15.0), pod.life_of(lambda: self.end(pod, mate, 1)))

    def held(self, pod: Pod) -> None:
        """Reports workers that survived SIGKILL.

        The operator replaces the pod, or the system call returns.
        """
        held = [worker for worker in pod.workers.values() if worker.held and worker.exit_code is None]
        if not held or pod.member.state != "stopping":
            return
        self.member_does(pod, pod.member.workers_stuck("processes do not die", self.now(pod)))

        def operator() -> None:
            leaders = [hub.coordinator for hub in self.pods if hub.alive and hub.coordinator is not None]
            known = [leader.peers[pod.ordinal] for leader in leaders if pod.ordinal in leader.peers]
            peer = known[0] if known else None
            if any(worker.exit_code is None for worker in held) and pod.alive:
                if (
                    peer is not None
                    and peer.state == STUCK
                    and faults.others_know(self, pod)
                    and self.rng.random() < 0.7
                ):
                    faults.note(self, "pod", pod)  # by the operator
                    self.bring_back(pod, keep_disk=False)
                elif self.rng.random() < 0.2:
                    for worker in held:
                        worker.held = False
                        self.end(pod, worker, -9)
                    self.swept(pod)
                else:
                    self.after(2.0, pod.life_of(operator))

        self.after(2.0, pod.life_of(operator))

    def swept(self, pod: Pod) -> None:
        ended = all(worker.exit_code is not None for worker in pod.workers.values())
        if ended and pod.member.state in ("stopping", STUCK):
            pod.workers = {}
            pod.member.port += 1
            self.member_does(pod, pod.member.workers_gone(self.now(pod)))

    def fault(self) -> None:
        faults.strike(self)

    # --- invariants -----------------------------------------------------------------------------------------------

    def check_start(self, pod: Pod, starts: list[coordinator_effects.Send]) -> None:
        attempts = {effect.message["attempt"] for effect in starts}
        sent = [effect for effect in starts if effect.conn in pod.conns]
        ranks = [(pod.conns[effect.conn].pod.ordinal, effect.message["nodeRank"]) for effect in sent]
        attempt = attempts.pop()
        if pod.coordinator and not self.moves.started(pod.coordinator, [ordinal for ordinal, _ in ranks]):
            self.fail(f"attempt {attempt} does not wait for the pod that is to move")
        if attempts or not self.sizes.started(attempt, ranks):
            self.fail(f"a start with attempts {attempt} {attempts} and ranks {ranks}")
        # A promise is lost with its pod's disk: the number of an attempt that reached no pod may be free again.
        is_fenced = self.has_volume or (self.spec.spares == 0 and self.spec.elastic is None and self.replicas > 1)
        before = max(self.started if is_fenced else self.group, default=0)
        if attempt <= before:
            self.fail(f"attempt {attempt} after {before}")
        if self.has_volume and self.lease != attempt:
            self.fail(f"attempt {attempt} starts with lease {self.lease}")
        for effect in starts:
            link = pod.conns[effect.conn]
            other = link.pod
            if link.up and self.same_lives(link) and any(w.exit_code is None for w in other.workers.values()):
                self.fail(f"attempt {attempt} starts while pod {other} still runs another")
        if self.outcomes:
            self.fail(f"attempt {attempt} starts after the outcome")
        self.started.append(attempt)

    def check(self) -> None:
        if self.outcomes and self.outcomes[0]["result"] == "Succeeded":
            restarts = self.outcomes[0]["restarts"]
            known = restarts["inPlace"] + restarts["pod"]  # a started attempt may have reached no pod
            ran = [attempt for attempt, pods in self.ran.items() if is_remembered(self, attempt, pods)]
            # An attempt whose start reached only a leader that was cut off may be missing where others continue.
            least = 0 if self.sizes.are_partial else len(ran) - 1
            if not least <= known <= len(self.started) - 1:
                self.fail(f"{len(ran)} attempts ran, but the history has {restarts}")
        coordinators = [pod.coordinator for pod in self.everyone if pod.coordinator]
        spent = max((len(coordinator.history.spent) for coordinator in coordinators), default=0)
        if spent > self.spec.max_restarts:
            self.fail(f"{spent} restarts weigh on a budget of {self.spec.max_restarts}")

    @property
    def is_over(self) -> bool:
        return (
            self.time > FAULT_SECONDS
            and not self.twins
            and all(
                pod.alive
                and pod.final is not None
                and pod.member.state == FINISHED
                and not any(worker.exit_code is None and not worker.held for worker in pod.workers.values())
                for pod in self.pods
            )
        )

    def run(self) -> World:
        for pod in self.pods:
            self.after(self.rng.uniform(0.0, 2.0), pod.boot)
        self.after(self.rng.expovariate(1 / 6.0), self.fault)
        while not self.is_over:
            if not self._events or self.time > FAULT_SECONDS + PATIENCE_SECONDS:
                states = [(p.alive, p.member and p.member.state, p.final and p.final["reason"]) for p in self.pods]
                hubs = [(pod.ordinal, pod.coordinator) for pod in self.pods if pod.coordinator]
                state = [(ordinal, hub.phase, hub.phase_reason, hub.waiting_for) for ordinal, hub in hubs]
                self.fail(f"the job does not end: {states}, coordinators {state}")
            self.time, _, call = heapq.heappop(self._events)
            call()
            self.check()
        return self
