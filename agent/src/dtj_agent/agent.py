"""The shell around the member: carries out the member's effects and reports to the member what happened.

The election (leadership.py), the coordinator of the agent that leads (coordinator_shell.py) and the
worker processes (worker_shell.py) have shells of their own.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Dict, List, Mapping, Optional

from dtj_agent import engines
from dtj_agent.coordinator_shell import CoordinatorShell
from dtj_agent.files.pod_output import PodOutput
from dtj_agent.files.state_file import StateDir
from dtj_agent.group import culprit, diagnosis, member
from dtj_agent.group.coordinator import Coordinator
from dtj_agent.group.group_spec import GroupSpec
from dtj_agent.group.hang_watch import HangSettings
from dtj_agent.group.history import History
from dtj_agent.group.member import Identity, Member
from dtj_agent.group.messages import RUNNING, Message, Now
from dtj_agent.group.worker_exit import WorkerExit
from dtj_agent.leadership import Leadership
from dtj_agent.net import descriptors
from dtj_agent.net.coordinator_link import CoordinatorLink
from dtj_agent.net.link import Link
from dtj_agent.net.loop import Loop
from dtj_agent.net.resolver import Resolver
from dtj_agent.net.server import AgentServer
from dtj_agent.pages import status
from dtj_agent.pages.routes import pages
from dtj_agent.pages.status_waits import StatusWaits
from dtj_agent.settings import Address, AgentSettings
from dtj_agent.worker_shell import WorkerShell
from dtj_agent.workers import launchers
from dtj_contract import names
from dtj_contract.agent_status import AgentStatus
from dtj_contract.operator_message import OperatorMessage

FLUSH_SECONDS = 1.0
ORPHANED_SECONDS = 2.0  # grace after a local agent's parent died


class Agent:
    """One pod's agent. `run` returns the exit code."""

    def __init__(self, settings: AgentSettings, environ: Mapping[str, str], loop: Loop) -> None:
        self.settings = settings = launchers.fit(settings)
        self.loop = loop
        self.output = PodOutput(settings.checkpoint_dir, settings.pod)
        self.log = self.output.log
        self._parent = settings.parent
        self._exit_code: Optional[int] = None
        self._exit_by = 0.0

        incarnation = os.urandom(8).hex()
        self._state_dir = StateDir(settings.state_dir, settings.uid, settings.termination_log, self.log)
        final = self._state_dir.load_outcome()
        self.member = Member(identity(settings, incarnation), self._state_dir.load_state(), final)
        self.workers = WorkerShell(loop, settings, environ, self.output)
        self.workers.on_exit = self._on_exit
        self.workers.on_gone = self._on_gone
        self.workers.on_stuck = self._on_stuck
        self.workers.on_reports = self._send_reports
        self.workers.on_store_failed = self._on_store_failed
        self.workers.watch.on_stopped = self._send_beat
        self.workers.on_warm = self._send_beat  # a group that can grow waits for it
        self.member.port = self.workers.port
        self.status_waits = StatusWaits(loop, self._status)
        self.server = AgentServer(
            loop,
            settings.listen,
            settings.secret,
            pages(settings.secret, self._status, self._handed_over, self.status_waits),
            self._accept,
            settings.most_peers,
        )
        self.server.on_rejected = self.log

        resolver = Resolver(loop)
        self._link = CoordinatorLink(loop, resolver, settings.secret, self.log)
        self._link.on_open = self._on_linked
        self._link.on_closed = lambda silence: self._do(self.member.disconnected(silence, self._now()))
        self.leadership = Leadership(
            loop,
            resolver,
            settings,
            self.member,
            self._link,
            self._own_address(),
            self._make_coordinator,
            lambda history: self._do(self.member.learn(history)),
            self.log,
        )
        self.leadership.on_message = lambda message: self._do(self.member.received(message, self._now()))

    def run(self) -> int:
        """Runs until there is an exit code, and returns it."""
        self.loop.on_signal(signal.SIGTERM, self.terminate)
        self.loop.on_signal(signal.SIGINT, self.terminate)
        self.log("%s listens on port %d" % (self.settings.pod, self.server.port))
        if self.member.outcome is not None:
            # The message of an earlier container may be gone from the pod's status by now.
            self._state_dir.write_termination_message(self.member.outcome)
            self.log("the job is finished (%s); waiting for this pod to be deleted" % self.member.outcome.get("result"))
        else:
            self.workers.warm_up()
        self.leadership.start()
        self._on_tick()
        self.loop.run()
        self.output.flush(FLUSH_SECONDS)
        self.workers.close()
        return self._exit_code or 0

    def terminate(self) -> None:
        """Ends the pod, on SIGTERM or SIGINT."""
        self.log("SIGTERM: this pod is terminating")
        self.leadership.leave()
        self._do(self.member.terminate(self._now()))

    # --- effects ----------------------------------------------------------------------------------

    def _do(self, effects: List[member.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, member.SendToCoordinator):
                self._link.send(effect.message)
            elif isinstance(effect, member.Spawn):
                self.member.spawned(list(self.workers.ranks(effect)))
                budget = self.member.history.budget
                self.workers.spawn(effect, None if budget is None else budget.checkpoint_keep)
            elif isinstance(effect, member.Stop):
                self.workers.stop(effect.grace)
            elif isinstance(effect, member.TakeStacks):
                self.workers.watch.take_stacks(self._send_stacks)
            elif isinstance(effect, member.Save):
                self._state_dir.save_state(self.member.saved())
            elif isinstance(effect, member.Finish):
                self._state_dir.save_outcome(effect.outcome)
                self._state_dir.write_termination_message(effect.outcome)
            elif isinstance(effect, member.Forget):
                self._state_dir.delete_outcome()
                self.workers.warm_up()
            elif isinstance(effect, member.Exit):
                self._exit(effect.code)
            else:
                self.log(effect.text)
        self.status_waits.touch()

    def _exit(self, code: int) -> None:
        """Exits as soon as every message is sent and, if this agent leads, every member has the outcome."""
        if self._exit_code is None:
            self._exit_code = code
            shell = self.leadership.shell
            waits_for_others = shell is not None and shell.coordinator.outcome is not None
            self._exit_by = self.loop.clock() + (names.FAREWELL_SECONDS if waits_for_others else FLUSH_SECONDS)
        self._try_exit()

    def _try_exit(self) -> None:
        busy = self._link.pending > 0
        shell = self.leadership.shell
        if shell is not None and shell.coordinator.outcome is not None:
            busy = not shell.coordinator.released
        if busy and self.loop.clock() < self._exit_by:
            self.loop.later(0.02, self._try_exit)
        else:
            self.status_waits.look()
            self.loop.stop()

    # --- workers ----------------------------------------------------------------------------------

    def _on_exit(self, exits: List[WorkerExit]) -> None:
        # The reports go before the failure: the coordinator must know the last step first.
        self._send_reports()
        self._do(self.member.exited(self.workers.attempt, exits, self._now()))

    def _on_gone(self) -> None:
        self.member.port = self.workers.port
        self._do(self.member.workers_gone(self._now()))

    def _on_stuck(self, text: str) -> None:
        self._do(self.member.workers_stuck(text, self._now()))

    def _on_store_failed(self, why: str) -> None:
        """Fails the attempt: the next one has another port, and may find the resource that this one lacked."""
        if self.member.ranks:
            failed = WorkerExit(self.member.ranks[0], diagnosis.EXEC_NO_RESOURCES, False, why, False)
            self._do(self.member.exited(self.workers.attempt, [failed], self._now()))

    def _send_reports(self) -> bool:
        """Sends new reports to the coordinator. Returns False if there is none, or no link."""
        self.member.reported(self.workers.attempt, self.workers.step)
        messages = self.workers.take_reports() if self._link.is_open else []
        self._do([member.SendToCoordinator(message) for message in messages])
        return bool(messages)

    def _on_linked(self) -> None:
        self._do(self.member.connected(self._now()))
        self._send_beat()

    def _send_beat(self) -> None:
        """Sends a heartbeat, with the vitals of the ranks that run."""
        ranks = self.workers.watch.vitals() if self.member.state == RUNNING else []
        vitals: Message = {"attempt": self.workers.attempt, "ranks": ranks} if ranks else {}
        if self.workers.is_warming:
            vitals["warming"] = True
        self._do([member.SendToCoordinator({"type": "beat", **vitals})])

    def _send_stacks(self, stacks: Dict[str, str]) -> None:
        for rank, stack in stacks.items():
            self.log("stack of rank %s in a group that hangs: %s" % (rank, stack))
        room = names.MAX_EVIDENCE_CHARS // max(1, len(stacks))
        short = {rank: culprit.shortened(stack, room) for rank, stack in stacks.items()}
        beat: Message = {"type": "beat", "attempt": self.workers.attempt, "stacks": short}
        self._do([member.SendToCoordinator(beat)])

    # --- connections ------------------------------------------------------------------------------

    def _own_address(self) -> Address:
        """Returns the address at which this process reaches its own server."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.settings.listen[0], self.settings.listen[0])
        return host, self.server.port

    def _accept(self, link: Link, _address: str) -> None:
        link.on_message = lambda message: self.leadership.accept(link, message)

    def _make_coordinator(self) -> CoordinatorShell:
        """Makes the group's coordinator, because this agent leads from now on."""
        settings = self.settings
        few_descriptors = descriptors.make_room(settings.most_peers)
        for problem in (*([few_descriptors] if few_descriptors else []), *settings.rule_problems):
            self.log(problem)
        history, final = History.from_json(self.member.history.to_json()), self.member.outcome
        coordinator = Coordinator(read_group_spec(settings), history, final, self._now(), settings.ordinal)
        shell = CoordinatorShell(self.loop, coordinator, settings.checkpoint_dir, self.log)
        shell.on_changed = self.status_waits.touch
        return shell

    # --- time -------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        """Sends the heartbeats, and does whatever is due about once a second."""
        self.loop.later(names.HEARTBEAT_SECONDS, self._on_tick)
        self._send_reports()
        self._send_beat()
        self.leadership.on_tick()
        self.status_waits.touch()
        if self.settings.parent and os.getppid() != self._parent:
            self._parent = os.getppid()
            self.log("the process that started this agent has died")
            self.terminate()
            self.loop.later(ORPHANED_SECONDS, self.terminate)

    def _now(self) -> Now:
        return Now(self.loop.clock(), time.time())

    def _handed_over(self, message: OperatorMessage) -> None:
        if self.leadership.shell is not None:
            self.leadership.shell.handed_over(message)

    def _status(self) -> AgentStatus:
        leader, shell = self.leadership.leader, self.leadership.shell
        if shell is not None:
            return status.coordinator_status(self.settings, shell.coordinator, leader, self._now())
        return status.member_status(self.settings, self.member, leader)


def identity(settings: AgentSettings, incarnation: str) -> Identity:
    """Returns what the member reports about itself. `incarnation`: new for each process."""
    return Identity(
        settings.uid,
        settings.ordinal,
        incarnation,
        settings.pod,
        settings.node,
        settings.address,
        settings.grace,
        settings.stop_grace,
        settings.success_policy,
    )


def read_group_spec(settings: AgentSettings) -> GroupSpec:
    """Returns the part of the settings that the coordinator decides by."""
    return GroupSpec(
        settings.uid,
        settings.replicas,
        settings.processes,
        settings.attempt_floor,
        settings.max_restarts,
        settings.window,
        settings.rendezvous_timeout,
        settings.job,
        settings.stop_grace,
        hang=HangSettings(settings.hang_policy, settings.hang_min_seconds, settings.progress_deadline),
        max_without_progress=settings.max_without_progress,
        rules=settings.rules,
        generation=settings.generation,
        has_other_nodes=not settings.parent,
        spares=settings.spares,
        elastic=settings.elastic,
        has_volume=settings.checkpoint_dir is not None,
        grace=settings.grace,
        success_policy=settings.success_policy,
        lists_members=engines.load(settings.engine).rank_ports,
    )


def exit_now(code: int) -> None:
    """Ends the process at once. sys.exit would wait for helper threads, which may hang in a dead volume or resolver."""
    sys.stdout.flush()
    os._exit(code)
