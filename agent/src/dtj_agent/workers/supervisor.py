"""The worker processes of this pod: started in sessions of their own, stopped with all their children, reaped.

As PID 1 the agent inherits every orphan of the container. Elsewhere (a local run) it asks the kernel for the same with
PR_SET_CHILD_SUBREAPER, and its workers for SIGKILL when it dies itself.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from dtj_agent.group import failure_rules
from dtj_agent.group.member import Exited
from dtj_agent.net.loop import READ, Loop, Timer
from dtj_agent.workers import cgroup
from dtj_agent.workers.lines import Lines
from dtj_contract import names

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SWEEP_SECONDS = 0.02  # between two looks at what is still dying
HOLD_UP_SECONDS = 0.01  # between two looks at a log that has no room
CHUNK = 64 * 1024
READS_AT_ONCE = 16  # of CHUNK from one worker, then the others get their turn; more than a pipe holds
# A session of its own, so that nothing of it is left behind; macOS can't do that in posix_spawn and makes a group.
OWN_SESSION: Dict[str, Any] = {"setsid": True} if sys.platform == "linux" else {"setpgroup": 0}
# A worker that would outlive a killed agent: PR_SET_PDEATHSIG must be set in the child, which posix_spawn can't.
GUARD = (
    "import ctypes,os,sys;ctypes.CDLL(None).prctl(1,9,0,0,0);"
    "os.getppid()==int(sys.argv[1]) or os._exit(1);os.execvp(sys.argv[2],sys.argv[2:])"
)


class Worker:
    """One rank's process; `pipe` carries its stdout and stderr."""

    def __init__(self, rank: int, pid: int, pipe: int) -> None:
        self.rank = rank
        self.pid = pid
        self.pipe: Optional[int] = pipe
        self.lines = Lines("[rank %d] " % rank)
        self.alive = True
        self.asked = False


class Workers:
    """`on_exit(list of Exited)` as they end, `on_gone()` once after `stop` when nothing is left, `on_output(bytes)`."""

    def __init__(self, loop: Loop, is_init: bool) -> None:
        self.on_exit: Callable[[List[Exited]], None] = lambda exits: None
        self.on_gone: Callable[[], None] = lambda: None
        self.on_output: Callable[[bytes], None] = lambda data: None
        self.has_room: Callable[[], bool] = lambda: True
        """While False, workers are not read: they wait as soon as their pipe is full."""
        self.on_stuck: Callable[[str], None] = lambda text: None
        self.spared: Dict[int, Callable[[int], None]] = {}
        """Children that are no worker's, by pid: never swept; called with their wait status when they have ended."""
        self._loop = loop
        self._guarded = not is_init and sys.platform == "linux"
        self._workers: Dict[int, Worker] = {}  # by pid
        self._oom_kills = 0
        self._stopping = False
        self._kill_at: Optional[float] = None
        self._timer: Optional[Timer] = None
        self._stuck_at = 0.0
        self._held_up: List[Worker] = []
        if self._guarded:
            import ctypes  # only in a local run: it costs memory

            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        loop.on_signal(signal.SIGCHLD, self.reap)

    def spawn(self, command: Sequence[str], environments: Mapping[int, Mapping[str, str]]) -> None:
        """One process for each rank. What can't be started ends at once, with a code as in a shell, and says why."""
        assert not self._workers, "the last attempt's workers are still there"
        self._oom_kills = cgroup.oom_kills()
        self._stopping, self._kill_at = False, None
        failed: List[Exited] = []
        for rank, environment in environments.items():
            try:
                self._spawn_one(rank, command, environment)
            except OSError as error:
                text = "%s: %s" % (command[0], error.strerror)
                self.on_output(b"[rank %d] %s\n" % (rank, text.encode()))
                failed.append(Exited(rank, failure_rules.exit_code_of(error), False, text, False))
        if failed:
            self._loop.soon(lambda: self.on_exit(failed))

    def stop(self, grace: float) -> None:
        """SIGTERM to each worker, SIGKILL to all that is left of it after `grace` seconds."""
        self.reap()  # who has ended by now, ended by itself
        now = self._loop.clock()
        if not self._stopping:
            self._stopping = True
            for worker in self._workers.values():
                if worker.alive:
                    worker.asked = True
                    self._signal(worker.pid, signal.SIGTERM)
        self._kill_at = now + grace if self._kill_at is None else min(self._kill_at, now + grace)
        self._stuck_at = self._kill_at + names.STUCK_SECONDS
        self._sweep()

    @property
    def pids(self) -> List[int]:
        return [worker.pid for worker in self._workers.values() if worker.alive]

    # --- ends -----------------------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Collect every child that has ended, ours and inherited ones."""
        ended: List[Exited] = []
        while True:
            try:
                # Look before collecting: until then the pid can't be taken by another process, so its group is surely its own.
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if found is None:
                break
            worker = self._workers.get(found.si_pid)
            if worker is not None:
                self._signal_group(worker.pid, signal.SIGKILL)  # what it has left behind must not live on
            _, status = os.waitpid(found.si_pid, 0)
            if worker is not None:
                ended.append(self._ended(worker, status))
            self.spared.pop(found.si_pid, _ignore)(status)
        if ended:
            self.on_exit(ended)
        if self._stopping:
            self._sweep()

    def _ended(self, worker: Worker, status: int) -> Exited:
        worker.alive = False
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        self._read(worker, to_the_end=True)
        oom = code == -signal.SIGKILL and cgroup.oom_kills() > self._oom_kills
        return Exited(worker.rank, code, worker.asked, worker.lines.tail, oom)

    def _sweep(self) -> None:
        """While stopping: kill what is due, and say when nothing is left."""
        if self._timer is not None:
            self._timer.cancel()
        now = self._loop.clock()
        alive = [worker for worker in self._workers.values() if worker.alive]
        due = self._kill_at is not None and now >= self._kill_at
        if due:
            for worker in alive:
                self._signal_group(worker.pid, signal.SIGKILL)
        orphans = [] if alive else [pid for pid in children() if pid not in self._workers and pid not in self.spared]
        for pid in orphans:  # they have left their group, and their parents have died
            self._signal(pid, signal.SIGKILL)
        if not alive and not orphans:
            self._workers.clear()
            self._stopping, self._kill_at = False, None
            self.on_gone()
            return
        if now >= self._stuck_at:
            self._stuck_at = now + names.STUCK_SECONDS
            pids = [worker.pid for worker in alive] + orphans
            self.on_stuck("processes %s do not die of SIGKILL: a volume or a driver holds them" % ", ".join(map(str, pids)))
        pause = SWEEP_SECONDS if due or not alive else (self._kill_at or now) - now
        self._timer = self._loop.later(pause, self._sweep_again)

    def _sweep_again(self) -> None:
        if self._stopping:
            self.reap()

    # --- starting and reading -------------------------------------------------------------------------------------

    def _spawn_one(self, rank: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        program = shutil.which(command[0], path=environment.get("PATH"))
        if program is None:
            raise FileNotFoundError(2, "command not found")
        arguments = [program, *command[1:]]
        if self._guarded:
            arguments = [sys.executable, "-I", "-S", "-c", GUARD, str(os.getpid()), *arguments]
        reader, writer = os.pipe()
        try:
            actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
            actions += [(os.POSIX_SPAWN_DUP2, writer, 1), (os.POSIX_SPAWN_DUP2, writer, 2)]  # type: ignore[list-item]
            # Handlers and masks of ours are not the worker's business.
            pid = os.posix_spawn(
                arguments[0], arguments, environment, file_actions=actions, setsigmask=(),
                setsigdef=(signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ), **OWN_SESSION,
            )  # fmt: skip
        except OSError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        os.set_blocking(reader, False)
        worker = Worker(rank, pid, reader)
        self._workers[pid] = worker
        self._watch(worker)

    def _read(self, worker: Worker, to_the_end: bool = False) -> None:
        reads = 0
        while worker.pipe is not None and reads < READS_AT_ONCE:
            reads += 1
            if not to_the_end and not self.has_room():
                self._hold_up(worker)
                break
            try:
                data = os.read(worker.pipe, CHUNK)
            except BlockingIOError:
                break
            if not data:
                return self._close(worker)
            out = worker.lines.feed(data)
            if out:
                self.on_output(out)
        if to_the_end:  # the worker has ended; a process that has left its group may hold the pipe, but not us
            self._close(worker)
        return None

    def _hold_up(self, worker: Worker) -> None:
        assert worker.pipe is not None
        self._loop.unwatch(worker.pipe)
        if not self._held_up:
            self._loop.later(HOLD_UP_SECONDS, self._let_go)
        self._held_up.append(worker)

    def _let_go(self) -> None:
        held, self._held_up = self._held_up, []
        for worker in held:
            if worker.pipe is not None:
                self._watch(worker)

    def _watch(self, worker: Worker) -> None:
        self._loop.watch(worker.pipe, READ, lambda events: self._read(worker))

    def _close(self, worker: Worker) -> None:
        if worker.pipe is not None:
            self._loop.unwatch(worker.pipe)
            os.close(worker.pipe)
            worker.pipe = None
            out = worker.lines.end()
            if out:
                self.on_output(out)

    def _signal(self, pid: int, number: int) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # it ended meanwhile

    def _signal_group(self, pid: int, number: int) -> None:
        try:
            os.killpg(pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # it ended meanwhile, or (macOS) only zombies are left of it


def _ignore(status: int) -> None:
    """Nobody asked for the end of this child."""


def children() -> List[int]:
    """This process's living children, as Linux tells them; elsewhere none."""
    me = os.getpid()
    try:
        with open("/proc/self/task/%d/children" % me) as file:
            return [int(pid) for pid in file.read().split() if not _is_zombie(int(pid))]
    except OSError:
        return []


def _is_zombie(pid: int) -> bool:
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
