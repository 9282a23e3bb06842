"""Many members of one group in this process, linked to a real agent of pod 0 over real sockets."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dtj_agent.group import member
from dtj_agent.group.member import Identity, Member
from dtj_agent.group.messages import Message, Now
from dtj_agent.group.worker_exit import WorkerExit
from dtj_agent.net.coordinator_link import CoordinatorLink
from dtj_agent.net.descriptors import make_room
from dtj_agent.net.loop import Loop
from dtj_agent.net.resolver import Resolver
from dtj_contract import names
from tests.lib.ports import free_port

KEY = "5e" * 32


class LightMember:
    """A member without worker processes: its workers end as soon as they are stopped."""

    def __init__(self, loop: Loop, resolver: Resolver, port: int, ordinal: int) -> None:
        self.started = self.messages = 0
        """The last attempt that was started here; what the member has sent and received, except heartbeats."""
        self._loop = loop
        me = Identity("uid-1", ordinal, f"i{ordinal}", f"j-{ordinal}", "node", "127.0.0.1", 5.0)
        self.member = Member(me, {}, None)
        self.member.port = 20000 + ordinal
        self.link = CoordinatorLink(loop, resolver, KEY.encode(), lambda text: None)
        self.link.on_open = lambda: self._do(self.member.connected(self._now()))
        self.link.on_message = lambda message: self._received(message)
        self.link.on_closed = lambda silence: self._do(self.member.disconnected(silence, self._now()))

        def dial_later() -> None:
            """Dials again: the agent of pod 0 needs a moment to listen."""
            loop.later(0.2, lambda: self.link.dial(("127.0.0.1", port)))

        self.link.on_ended = lambda was_open: dial_later()
        self.link.dial(("127.0.0.1", port))
        loop.later(ordinal % 100 / 100, self._beat)

    def _received(self, message: Message) -> None:
        self.messages += message["type"] != "beat"
        self._do(self.member.received(message, self._now()))

    def fail(self) -> None:
        """Ends the worker with exit code 1 and a usual traceback."""
        failed = WorkerExit(self.member.ranks[0], 1, False, "Traceback\n" * 150, False)
        self._do(self.member.exited(self.member.attempt, [failed], self._now()))

    def _beat(self) -> None:
        self._loop.later(names.HEARTBEAT_SECONDS, self._beat)
        self._do([member.SendToCoordinator({"type": "beat"})])

    def _do(self, effects: list[member.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, member.SendToCoordinator):
                self.messages += effect.message["type"] != "beat"
                self.link.send(effect.message)
            elif isinstance(effect, member.Spawn):
                self.started = effect.attempt
                self.member.spawned([effect.node_rank])
            elif isinstance(effect, member.Stop):
                self._loop.soon(lambda: self._do(self.member.workers_gone(self._now())))

    def _now(self) -> Now:
        return Now(self._loop.clock(), time.time())


class Crowd:
    """`members`: the light members, of the ordinals from 1 on; `agent`: the process of pod 0."""

    def __init__(self, folder: Path, size: int) -> None:
        assert make_room(size) == "", "this process needs a descriptor for each member"
        port = free_port()
        (folder / "key").write_text(KEY)
        environ = {
            names.ENV_JOB: "j",
            names.ENV_JOB_UID: "uid-1",
            names.ENV_REPLICAS: str(size),
            names.ENV_ORDINAL: "0",
            names.ENV_PEERS: f"127.0.0.1:{port},127.0.0.1:1" + ",127.0.0.1:1" * (size - 2),
            names.ENV_LISTEN: f"127.0.0.1:{port}",
            names.ENV_SECRET_FILE: str(folder / "key"),
            names.ENV_STATE_DIR: str(folder / "state"),
            names.ENV_TERMINATION_LOG: str(folder / "termination"),
            names.ENV_MAX_RESTARTS: "1000",
        }
        with open(folder / "log", "ab") as log:
            self.agent = subprocess.Popen(
                [sys.executable, "-m", "dtj_agent", "--", "sleep", "600"],
                env={**os.environ, **environ},
                stdout=log,
                stderr=log,
            )
        self.log = folder / "log"
        self._loop = Loop()
        resolver = Resolver(self._loop)
        self.members = [LightMember(self._loop, resolver, port, ordinal) for ordinal in range(1, size)]

    def until(self, what: str, condition: Callable[[], bool], timeout: float = 90.0) -> float:
        """Runs the members until the condition holds. Returns the seconds that it took."""
        began = time.monotonic()
        while not condition():
            took = time.monotonic() - began
            assert took < timeout, f"{what}: not after {took:.0f} s\n{self.log.read_text()[-3000:]}"
            self._loop.run_once()
        return time.monotonic() - began

    def until_attempt(self, attempt: int) -> float:
        """Returns the seconds until all members have started `attempt`."""
        return self.until(f"attempt {attempt}", lambda: all(m.started == attempt for m in self.members))

    def fail_all(self) -> None:
        for light in self.members:
            light.fail()

    def messages(self) -> int:
        """Returns the messages of all members so far, except heartbeats."""
        return sum(light.messages for light in self.members)

    def resident(self) -> int:
        """Returns the greatest resident memory of pod 0's agent so far, in KiB."""
        text = Path(f"/proc/{self.agent.pid}/status").read_text()
        return int(text.partition("VmHWM:")[2].split()[0])

    def cpu(self) -> float:
        """Returns the CPU seconds that pod 0's agent has used."""
        fields = Path(f"/proc/{self.agent.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def run_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.until("the time to pass", lambda: time.monotonic() >= end)


@contextlib.contextmanager
def crowd(folder: Path, size: int) -> Iterator[Crowd]:
    """Returns a group of `size` whose first attempt is not yet started; ends it afterwards."""
    group = Crowd(folder, size)
    try:
        yield group
    finally:
        group.agent.kill()
        group.agent.wait()
