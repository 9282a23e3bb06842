"""The shell around the member: carries out its effects and tells it what happens. All of a pod's I/O meets here.

The coordinator, in the agent of pod 0, has a shell of its own (hub.py).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, Callable, Dict, List, Mapping, Optional

from dtj_agent.coordinator_shell import Hub
from dtj_agent.files import state_file
from dtj_agent.files.output import Output
from dtj_agent.files.unreported_saves import SavesWatch
from dtj_agent.group import failure_rules, member, outcome
from dtj_agent.group.coordinator import Coordinator
from dtj_agent.group.history import History
from dtj_agent.group.member import Exited, Member
from dtj_agent.group.messages import Message, Now
from dtj_agent.group.rules import Rules
from dtj_agent.net.announce import Announcer
from dtj_agent.net.dialer import Dialer
from dtj_agent.net.link import Link
from dtj_agent.net.loop import Loop
from dtj_agent.net.resolver import Resolver
from dtj_agent.net.server import Server
from dtj_agent.pages import status
from dtj_agent.pages.routes import pages
from dtj_agent.settings import Address, Settings
from dtj_agent.store.host import StoreHost
from dtj_agent.store.master_port import PortHolder
from dtj_agent.workers import error_file as errorfile
from dtj_agent.workers import extensions, launchers, worker_env
from dtj_agent.workers.reports import Reports
from dtj_agent.workers.supervisor import Workers
from dtj_contract import names

FLUSH_SECONDS = 1.0
ORPHANED_SECONDS = 2.0  # a local agent whose starter has died gives its workers this long


class Agent:
    """One pod's agent. `run` returns the exit code."""

    def __init__(self, settings: Settings, environ: Mapping[str, str], loop: Loop) -> None:
        self.settings = settings
        self.loop = loop
        self._environ = dict(environ)
        if launchers.is_launcher(settings.command):
            self._environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
        self.output = Output(settings.checkpoint_dir, settings.pod)
        self.log = self.output.log
        self._parent = os.getppid()
        self._exit_code: Optional[int] = None
        self._exit_by = 0.0

        incarnation = os.urandom(8).hex()
        final = state_file.load_outcome(settings.state_dir, settings.uid)
        saved = state_file.load(settings.state_dir, settings.uid)
        identity = member.Identity(
            settings.uid,
            settings.ordinal,
            incarnation,
            settings.pod,
            settings.node,
            settings.address,
            settings.grace,
            settings.stop_grace,
        )
        self.member = Member(identity, saved, final)
        self.hub: Optional[Hub] = None  # in the agent of pod 0
        if settings.ordinal == 0:
            rules = Rules(
                settings.uid, settings.replicas, settings.processes, settings.attempt_floor, settings.max_restarts,
                settings.window, settings.rendezvous_timeout, settings.job, settings.stop_grace,
            )  # fmt: skip
            coordinator = Coordinator(rules, History.from_json(self.member.history.to_json()), final, self._now())
            self.hub = Hub(loop, coordinator, settings.checkpoint_dir, self.log)
        self._saves: Optional[SavesWatch] = None
        if self.hub is not None and settings.checkpoint_dir:
            self._saves = SavesWatch(loop, settings.checkpoint_dir, self._saved)
        self._link: Optional[Link] = None  # to the coordinator
        self._searching_since = loop.clock()
        self._searching_why = ""  # what was said last of it

        self._ports = PortHolder(settings.address)
        self._renew_port()
        self._reports = Reports(loop, settings.state_dir)
        self._reports.on_news = self._report
        self.workers = Workers(loop, is_init=os.getpid() == 1)
        self.workers.on_exit = self._exited
        self.workers.on_gone = self._gone
        self.workers.on_output = self.output.write
        self.workers.on_stuck = self._stuck
        self.workers.has_room = self.output.has_room
        kept = {key: value for key, value in environ.items() if key not in worker_env.AGENT_ONLY}
        self._store = StoreHost(loop, kept, self.workers.spared)
        self._store.on_failed = self._no_store
        self._store.on_ended = lambda code: self.log("the rendezvous store has ended unasked (wait status %d)" % code)
        self.server = Server(
            loop, settings.listen, settings.secret, pages(settings.secret, self._status), self._accepted, settings.peer_count
        )
        self.server.on_refused = self.log

        self._resolver = Resolver(loop)
        self._dialer = Dialer(loop, self._resolver, settings.secret, self._coordinator_address())
        self._dialer.on_open = self._linked
        self._dialer.on_closed = self._unlinked
        self._announcer = Announcer(loop, self._resolver, settings, incarnation, self.server.port, self._directed)
        if self.hub is not None:
            self._announcer.on_attempt = self.hub.heard_of
        self._asking = False  # the resolver, to whom pod 0's name leads

    def run(self) -> int:
        """Until there is an exit code."""
        self.loop.on_signal(signal.SIGTERM, self.terminate)
        self.loop.on_signal(signal.SIGINT, self.terminate)
        self.log("%s listens on port %d" % (self.settings.pod, self.server.port))
        if self.member.outcome is not None:
            # The message of an earlier container may be gone from the pod's status by now.
            self._write_termination(self.member.outcome)
            self.log("the job is finished (%s): waiting to be removed" % self.member.outcome.get("result"))
        self._dialer.start()
        self._second()
        self.loop.run()
        self.output.flush(FLUSH_SECONDS)
        self._reports.close()
        self._store.close()
        return self._exit_code or 0

    def terminate(self) -> None:
        """SIGTERM or SIGINT: the pod ends."""
        self.log("SIGTERM: this pod ends")
        self._do_member(self.member.terminate(self._now()))

    # --- effects --------------------------------------------------------------------------------------------------

    def _do_member(self, effects: List[member.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, member.Send):
                if self._link is not None:
                    self._link.send(effect.message)
            elif isinstance(effect, member.Spawn):
                self._spawn(effect)
            elif isinstance(effect, member.Stop):
                self.workers.stop(effect.grace)
            elif isinstance(effect, member.Save):
                self._save()
            elif isinstance(effect, member.Finish):
                self._write_outcome(effect.outcome)
            elif isinstance(effect, member.Forget):
                self._forget_outcome()
            elif isinstance(effect, member.Exit):
                self._exit(effect.code)
            else:
                self.log(effect.text)

    def _spawn(self, spawn: member.Spawn) -> None:
        settings = self.settings
        self._reports.begin(spawn.attempt)
        ranks = worker_env.ranks(settings, spawn)
        self.member.spawned(list(ranks))
        self._open_store(spawn)
        if spawn.attempt > 1:
            for path in extensions.remove_stale_locks(extensions.folder(self._environ)):
                self.log("removed %s: the worker that built an extension there was killed" % path)
        environments = {}
        for local_rank, rank in enumerate(ranks):
            error_file = self._error_file(local_rank)
            self._remove(error_file)
            environments[rank] = worker_env.of_worker(settings, self._environ, spawn, local_rank, self._reports.path, error_file)
        self.log(
            "attempt %d: starting ranks %d to %d of %d" % (spawn.attempt, ranks[0], ranks[-1], spawn.nodes * settings.processes)
        )
        self.workers.spawn(settings.command, environments)

    def _open_store(self, spawn: member.Spawn) -> None:
        """Ends the store of the attempt before; the pod of node rank 0 holds the one of this attempt."""
        self._store.close()
        bound = self._ports.take()
        if bound is None:
            return
        if spawn.node_rank != 0 or not worker_env.has_agent_store(self._environ):
            bound.close()
            return
        try:
            self._store.open(bound)
        except OSError as error:
            why = "port %d: %s" % (spawn.master_port, error.strerror)
            self.loop.soon(lambda: self._no_store(why))

    def _no_store(self, why: str) -> None:
        """The attempt can't go on: the next one has another port, and may find what this one lacked."""
        self.log(why)
        if self.member.ranks:
            failed = Exited(self.member.ranks[0], failure_rules.EXEC_NO_RESOURCES, False, why, False)
            self._do_member(self.member.exited(self._reports.attempt, [failed], self._now()))

    def _save(self) -> None:
        try:
            state_file.save(self.settings.state_dir, self.member.saved())
        except OSError as error:
            self.log("%s: the state can't be saved: %s" % (names.ENV_STATE_DIR, error))

    def _write_outcome(self, final: Message) -> None:
        try:
            state_file.save_outcome(self.settings.state_dir, final)
        except OSError as error:
            self.log("%s: the outcome can't be saved: %s" % (names.ENV_STATE_DIR, error))
        self._write_termination(final)

    def _forget_outcome(self) -> None:
        try:
            state_file.forget_outcome(self.settings.state_dir)
        except OSError as error:
            self.log("%s: the outcome can't be removed: %s" % (names.ENV_STATE_DIR, error))

    def _write_termination(self, final: Message) -> None:
        problem = state_file.write_termination_message(self.settings.termination_log, outcome.termination_message(final))
        if problem is not None:
            self.log("the termination message can't be written: " + problem)

    def _exit(self, code: int) -> None:
        """Once all that was said has left this machine, and (the coordinator) once everyone has heard the outcome."""
        if self._exit_code is None:
            self._exit_code = code
            waits_for_others = self.hub is not None and self.hub.coordinator.outcome is not None
            self._exit_by = self.loop.clock() + (names.FAREWELL_SECONDS if waits_for_others else FLUSH_SECONDS)
        self._try_exit()

    def _try_exit(self) -> None:
        busy = self._link is not None and self._link.pending > 0
        if self.hub is not None and self.hub.coordinator.outcome is not None:
            busy = not self.hub.coordinator.released
        if busy and self.loop.clock() < self._exit_by:
            self.loop.later(0.02, self._try_exit)
        else:
            self.loop.stop()

    # --- workers --------------------------------------------------------------------------------------------------

    def _exited(self, exits: List[Exited]) -> None:
        for worker in exits:
            self.log("rank %d ended with %d%s" % (worker.rank, worker.exit_code, " as asked" if worker.asked else ""))
        exits = [self._with_error_file(worker) for worker in exits]
        self._reports.read()
        self._report()  # before the failure: the coordinator must know the last step first
        self._do_member(self.member.exited(self._reports.attempt, exits, self._now()))

    def _with_error_file(self, worker: Exited) -> Exited:
        """What the worker has recorded of its own failure; its traceback stands in for a log that holds nothing."""
        found = errorfile.read(self._error_file(worker.rank % self.settings.processes)) if worker.exit_code else None
        if found is None:
            return worker
        return worker._replace(recorded=found.message, log_tail=worker.log_tail or found.traceback)

    def _error_file(self, local_rank: int) -> str:
        return os.path.join(self.settings.state_dir, "error-%d.json" % local_rank)

    def _remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            self.log("%s can't be removed: %s" % (path, error.strerror))

    def _gone(self) -> None:
        self._renew_port()
        self._do_member(self.member.workers_gone(self._now()))

    def _saved(self, newest: float) -> None:
        if self.hub is not None:
            self.hub.coordinator.goodput.file_saved(newest, self._now())

    def _stuck(self, text: str) -> None:
        self._do_member(self.member.workers_stuck(text, self._now()))

    def _renew_port(self) -> None:
        self.member.port = self._ports.renew()

    def _report(self) -> bool:
        """Tell the coordinator what is new; False: there is nothing, or nobody to tell it to."""
        self.member.reported(self._reports.attempt, self._reports.step)
        messages = self._reports.take() if self._link is not None else []
        self._do_member([member.Send(message) for message in messages])
        return bool(messages)

    # --- the coordinator's link, seen from a member ------------------------------------------------------------------

    def _coordinator_address(self) -> Address:
        if self.settings.ordinal != 0:
            return self.settings.peer(0)
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.settings.listen[0], self.settings.listen[0])
        return host, self.server.port

    def _linked(self, link: Link) -> None:
        self._link = link
        link.on_message = lambda message: self._do_member(self.member.received(message, self._now()))
        self._do_member(self.member.connected(self._now()))

    def _unlinked(self, was_open: bool, reason: str, silence: float) -> None:
        if was_open:
            self._link = None
            self._do_member(self.member.disconnected(silence, self._now()))
            self._searching_since = self.loop.clock()
        # That a name does not resolve yet, or that nobody answers there, is normal for a while.
        patient = "secret" not in reason and self.loop.clock() - self._searching_since < names.PEER_DEAD_SECONDS
        if not patient and reason != self._searching_why:
            self._searching_why = reason
            self.log("can't reach the coordinator: " + reason)

    def _directed(self, address: Address) -> None:
        """A peer has told where the coordinator is; who has found it by now knows better."""
        if self._link is None and self.settings.ordinal != 0:
            self._dialer.hint(address)

    def _called(self, address: Address) -> None:
        """The coordinator itself says where it is."""
        if self._link is not None and self._link.peer_address == address:
            return
        if self._link is not None:
            self._link.close("the coordinator is at %s now" % address[0])
        self._dialer.hint(address)

    def _if_named(self, address: Address, call: Callable[[], None]) -> None:
        """Calls back if pod 0's name leads to `address`; one question at a time, whoever asks does so again each second."""

        def answered(found: List[Address], why: str) -> None:
            self._asking = False
            if address in found:
                call()

        if not self._asking:
            self._asking = True
            self._resolver.resolve(self.settings.peer(0), answered)

    # --- those who dial us ------------------------------------------------------------------------------------------

    def _accepted(self, link: Link, address: str) -> None:
        def first(message: Message) -> None:
            if message["type"] == "announce" and message["uid"] == self.settings.uid:
                where = (str(message["address"]), int(message["agentPort"]))
                if message["ordinal"] == 0 and self.settings.ordinal != 0:
                    if self.member.follows(message["started"]):
                        self._called(where)
                    else:
                        self._if_named(where, lambda: self._called(where))
                known = {"coordinator": self._known_coordinator(), "attempt": self.member.known_attempt}
                link.send(dict(known, type="known"))
                link.close_when_written()
            elif message["type"] == "hello" and self.hub is not None:
                self.hub.join(link, message)
            elif message["type"] == "hello":
                link.close("this is not the coordinator")

        link.on_message = first

    def _known_coordinator(self) -> Optional[List[Any]]:
        if self.settings.ordinal == 0:
            return [self.settings.address, self.server.port]
        return None if self._link is None else list(self._link.peer_address)

    # --- time ---------------------------------------------------------------------------------------------------------

    def _second(self) -> None:
        """Heartbeats, and what must be looked at now and then."""
        self.loop.later(names.HEARTBEAT_SECONDS, self._second)
        if not self._report():
            self._do_member([member.Send({"type": "beat"})])
        if self.hub is not None:
            self.hub.second()
            if self._saves is not None and self.hub.coordinator.goodput.is_silent:
                self._saves.look()
            missing = [o for o in range(self.settings.peer_count) if o not in self.hub.coordinator.peers]
            self._announcer.call(missing, self.hub.coordinator.succession.announced)
            if self.hub.coordinator.is_replaced:
                self._if_named((self.settings.address, self.server.port), self.hub.named)
        elif self._link is None:
            self._announcer.call_some()
        if self.settings.die_with_parent and os.getppid() != self._parent:
            self._parent = os.getppid()
            self.log("the process that started this agent has died")
            self.terminate()
            self.loop.later(ORPHANED_SECONDS, self.terminate)

    def _now(self) -> Now:
        return Now(self.loop.clock(), time.time())

    def _status(self) -> Dict[str, Any]:
        if self.hub is not None:
            return status.of_coordinator(self.settings, self.hub.coordinator, self._now())
        return status.of_member(self.settings, self.member)


def exit_now(code: int) -> None:
    """Helper threads may hang in a dead volume or resolver: don't wait for them as sys.exit would."""
    sys.stdout.flush()
    os._exit(code)
