"""The worker processes of this pod: started in sessions of their own, stopped with all their children, reaped.

As PID 1 the agent inherits every orphan of the container. Elsewhere (a local run) the agent
requests this from the kernel with PR_SET_CHILD_SUBREAPER, and its workers request SIGKILL for when
the agent dies.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from dtj_agent.group import diagnosis
from dtj_agent.group.worker_exit import WorkerExit
from dtj_agent.net.loop import READ, Loop, Timer
from dtj_agent.workers import cgroup, signal_handlers
from dtj_agent.workers.worker_output import WorkerOutput
from dtj_contract import names

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SWEEP_SECONDS = 0.02  # between two checks of processes that are dying
HOLD_UP_SECONDS = 0.01  # between two checks of a log that is full
CHUNK = 64 * 1024
# Reads of CHUNK from one worker, before the others get their turn. This is more than a pipe holds.
READS_AT_ONCE = 16
# A session of its own, so that no process of it is left behind. macOS can't do that in posix_spawn;
# there it is a group.
OWN_SESSION: Dict[str, Any] = {"setsid": True} if sys.platform == "linux" else {"setpgroup": 0}
# Without this a worker would outlive a killed agent. PR_SET_PDEATHSIG must be set in the child;
# posix_spawn can't.
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
        self.lines = WorkerOutput("[rank %d] " % rank)
        self.alive = True
        self.stop_requested = False


class Supervisor:
    """Calls `on_exit(list of WorkerExit)` as workers end, `on_gone()` once after `stop` when no process
    is left, `on_output(bytes)` with their output, and `on_stuck(text)` when SIGKILL does not end
    them.
    """

    def __init__(self, loop: Loop, is_init: bool) -> None:
        self.on_exit: Callable[[List[WorkerExit]], None] = lambda exits: None
        self.on_gone: Callable[[], None] = lambda: None
        self.on_output: Callable[[bytes], None] = lambda data: None
        self.has_room: Callable[[], bool] = lambda: True
        """Returns whether output may be read. While it returns False, workers block as soon as their pipe is full."""
        self.on_stuck: Callable[[str], None] = lambda text: None
        self.spared: Dict[int, Callable[[int], None]] = {}
        """Children that belong to no worker, by pid: never swept. Each callback gets the child's wait status."""
        self.before_strangers: Callable[[], None] = lambda: None
        """Called before a child of unknown pid is reaped: a forked worker may have ended before it was adopted."""
        self._loop = loop
        self._guarded = not is_init and sys.platform == "linux"
        self._workers: Dict[int, Worker] = {}  # by pid
        self._oom_kills = 0
        self._runs = False
        """Whether an attempt has begun, and `on_gone` has not been called for it."""
        self._stopping = False
        self._kill_at: Optional[float] = None
        self._timer: Optional[Timer] = None
        self._stuck_at = 0.0
        self._held_up: List[Worker] = []
        if self._guarded:
            import ctypes  # only in a local run, because it costs memory

            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        loop.on_signal(signal.SIGCHLD, self.reap)

    def spawn(self, command: Sequence[str], environments: Mapping[int, Mapping[str, str]]) -> None:
        """Starts one process for each rank.

        A process that can't be started counts as exited, with the code that a shell would give, and
        the reason as its log.
        """
        self.begin()
        self.spawn_ranks(command, environments)

    def begin(self) -> None:
        """Begins an attempt, whose workers are then started or adopted."""
        assert not self._workers, "workers of the last attempt still run"
        self._oom_kills = cgroup.oom_kills()
        self._runs, self._stopping, self._kill_at = True, False, None

    def spawn_ranks(self, command: Sequence[str], environments: Mapping[int, Mapping[str, str]]) -> None:
        """Starts processes as `spawn` does, in an attempt that has begun."""
        failed: List[WorkerExit] = []
        for rank, environment in environments.items():
            try:
                self._spawn_one(rank, command, environment)
            except OSError as error:
                text = "%s: %s" % (command[0], error.strerror)
                self.on_output(b"[rank %d] %s\n" % (rank, text.encode()))
                failed.append(WorkerExit(rank, diagnosis.start_error_exit_code(error), False, text, False))
        if failed:
            self._loop.soon(lambda: self.on_exit(failed))

    def stop(self, grace: float, hurry: bool = False) -> None:
        """Sends SIGTERM to each worker, and SIGKILL to all processes that are left of it after `grace` seconds.

        `hurry`: there is no grace if no worker has a handler that could use it.
        """
        self.reap()  # workers that ended before the signal
        if not self._runs:
            return  # they were the last ones of an attempt that stops already
        now = self._loop.clock()
        if hurry and not any(signal_handlers.can_save_alone(pid) for pid in self.pids):
            grace = 0.0
        if not self._stopping:
            self._stopping = True
            for worker in self._workers.values():
                if worker.alive:
                    worker.stop_requested = True
                    self._signal(worker.pid, signal.SIGTERM)
        self._kill_at = now + grace if self._kill_at is None else min(self._kill_at, now + grace)
        self._stuck_at = self._kill_at + names.STUCK_SECONDS
        self._sweep()

    @property
    def processes(self) -> Dict[int, int]:
        """The pids of the workers that run, by rank."""
        return {worker.rank: worker.pid for worker in self._workers.values() if worker.alive}

    @property
    def is_guarded(self) -> bool:
        """Whether children must be made to end with the agent: the kernel does so only for PID 1."""
        return self._guarded

    @property
    def pids(self) -> List[int]:
        return [worker.pid for worker in self._workers.values() if worker.alive]

    # --- ends -------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Reaps every child that has ended, started or inherited."""
        ended: List[WorkerExit] = []
        while True:
            try:
                # Look before reaping: until it is reaped, no other process can take the pid, so the
                # group is its own.
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if found is None:
                break
            if found.si_pid not in self._workers:
                self.before_strangers()
            worker = self._workers.get(found.si_pid)
            if worker is not None:
                self._signal_group(worker.pid, signal.SIGKILL)  # children that it left behind
            _, status = os.waitpid(found.si_pid, 0)
            if worker is not None:
                ended.append(self._ended(worker, status))
            self.spared.pop(found.si_pid, _ignore)(status)
        if ended:
            self.on_exit(ended)
        if self._stopping:
            self._sweep()

    def _ended(self, worker: Worker, status: int) -> WorkerExit:
        worker.alive = False
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        self._read(worker, to_the_end=True)
        oom = code == -signal.SIGKILL and cgroup.oom_kills() > self._oom_kills
        return WorkerExit(worker.rank, code, worker.stop_requested, worker.lines.tail, oom)

    def _sweep(self) -> None:
        """Kills processes whose grace is over while workers stop, and calls `on_gone` when none is left."""
        if self._timer is not None:
            self._timer.cancel()
        now = self._loop.clock()
        alive = [worker for worker in self._workers.values() if worker.alive]
        due = self._kill_at is not None and now >= self._kill_at
        if due:
            for worker in alive:
                self._signal_group(worker.pid, signal.SIGKILL)
        orphans = [] if alive else [pid for pid in children() if pid not in self._workers and pid not in self.spared]
        # Orphans have left their worker's group, and their parents have died.
        for pid in orphans:
            self._signal(pid, signal.SIGKILL)
        if not alive and not orphans:
            self._workers.clear()
            self._runs, self._stopping, self._kill_at = False, False, None
            self.on_gone()
            return
        if now >= self._stuck_at:
            self._stuck_at = now + names.STUCK_SECONDS
            pids = [worker.pid for worker in alive] + orphans
            text = "processes %s do not die of SIGKILL: a volume or a driver blocks them"
            self.on_stuck(text % ", ".join(map(str, pids)))
        pause = SWEEP_SECONDS if due or not alive else (self._kill_at or now) - now
        self._timer = self._loop.later(pause, self._sweep_again)

    def _sweep_again(self) -> None:
        if self._stopping:
            self.reap()

    # --- starting and reading ---------------------------------------------------------------------

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
            # The worker must not inherit the agent's signal handlers and masks.
            pid = os.posix_spawn(
                arguments[0], arguments, environment, file_actions=actions, setsigmask=(),
                setsigdef=(signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ),
                **OWN_SESSION,
            )  # fmt: skip
        except OSError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        self.adopt(rank, pid, reader)

    def adopt(self, rank: int, pid: int, reader: int) -> None:
        """Takes a child that leads a session as the worker of `rank`; `reader` is the end of its output pipe."""
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
        # The worker has ended. A process that left its group may keep the pipe open; the agent must
        # not wait for it.
        if to_the_end:
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
            pass  # ended meanwhile

    def _signal_group(self, pid: int, number: int) -> None:
        try:
            os.killpg(pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # ended meanwhile, or (macOS) only zombies are left


def _ignore(status: int) -> None:
    """Ignores the end of an inherited child."""


def children() -> List[int]:
    """Returns this process's living children, which only Linux reports; none elsewhere."""
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
