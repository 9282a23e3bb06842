"""The agent's side of the warm process: starts it, restarts it, and sends it requests for workers.

A warm process is never a reason to fail: whatever is wrong with it, workers are started plainly.
"""

from __future__ import annotations

import array
import json
import os
import shutil
import signal
import socket
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import dtj_contract
from dtj_agent.net.loop import READ, Loop, Timer
from dtj_agent.warm_needs import WarmNeeds
from dtj_agent.workers.process_watch import is_stopped
from dtj_agent.workers.python_command import PythonCommand
from dtj_agent.workers.supervisor import OWN_SESSION
from dtj_agent.workers.worker_output import WorkerOutput
from dtj_contract import names

# The package may be in a zipapp. None of these paths stays in the sys.path of a worker.
PROGRAM = (
    "import sys\n"
    "if sys.path[:1] == ['']: del sys.path[0]\n"
    "roots = sys.argv.pop(1).split('\\n'); sys.path[:0] = roots\n"
    "from dtj_agent.warm import server\n"
    "del sys.path[:len(roots)]\n"
    "server.main()\n"
)
# The names are those of dtj_agent.warm.process_view, which the agent does not import.
ROOM, ROOM_BYTES, ARGUMENT_ROOM_BYTES = "DTJ_WARM_ROOM", 4096, 1024
WRITTEN_BYTES = 64 * 1024  # an argument of a process has a limit
MESSAGE_BYTES = 4096
UNLEARNED_FILE = "imports.off"
"""In the agent's state dir: the process must not learn, not even that of a restarted agent."""
CHUNK = 64 * 1024


class WarmProcess:
    """Calls `on_change()` when it has become ready, unusable or off.

    `needs`: those of the job's engine. `spared`: see `Supervisor.spared`. `guarded`: the process must end with the
    agent. `folder`: where the process keeps what the script imports; empty if it must not learn that. `written`: the
    job's command.
    """

    def __init__(
        self,
        loop: Loop,
        command: PythonCommand,
        environ: Mapping[str, str],
        needs: WarmNeeds,
        modules: Sequence[str],
        spared: Dict[int, Callable[[int], None]],
        guarded: bool,
        folder: str = "",
        written: Sequence[str] = (),
    ) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.log: Callable[[str], None] = lambda text: None
        self.on_output: Callable[[bytes], None] = lambda data: None
        self.is_ready = False
        self.is_off = False
        """Whether this pod will have no warm process, for good."""
        self.pid = 0
        self.why = "it has not been started"
        """Why the process is not ready."""
        self.has_learned = False
        """Whether workers that are forked now begin with what the script has imported before."""
        self.environ = {key: value for key, value in environ.items() if key != ROOM}
        self._loop = loop
        self._command = command
        self._needs = needs
        self._modules = list(modules)
        self._left_out: List[str] = []
        written = json.dumps(list(written))
        self._written = written if len(written) <= WRITTEN_BYTES else "[]"
        self._spared = spared
        self._guarded = guarded
        self._folder = "" if os.path.exists(os.path.join(folder, UNLEARNED_FILE)) else folder
        self._socket: Optional[socket.socket] = None
        self._output: Optional[int] = None
        self._lines = WorkerOutput("[warm] ")
        self._importing = ""
        self._failures = 0
        """The ends in a row, each soon after a start."""
        self._ready_at = 0.0
        self._timer: Optional[Timer] = None
        self._look_timer: Optional[Timer] = None

    @property
    def is_importing(self) -> bool:
        return self._socket is not None and not self.is_ready

    def start(self) -> None:
        """Starts the process, unless it is off or runs."""
        if self.is_off or self._socket is not None:
            return
        try:
            self._spawn()
        except OSError as error:
            self._failed("it can't be started: %s" % error.strerror)

    def request(self, request: Dict[str, Any], descriptors: Sequence[int]) -> bool:
        """Sends a request. Returns False if the process can't take it now."""
        if self._socket is None or not self.is_ready:
            return False
        rights = array.array("i", descriptors)
        try:
            self._socket.sendmsg([json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError as error:
            self.why = "it takes no request: %s" % error.strerror
            return False
        return True

    def differing(self, environments: Sequence[Mapping[str, str]]) -> Optional[str]:
        """Returns a variable that is read at import and that a rank would have with another value."""
        for environment in environments:
            for key in sorted({*environment, *self.environ}):
                if not key.startswith(self._needs.import_time) or key.startswith(self._needs.per_rank):
                    continue
                if environment.get(key) != self.environ.get(key):
                    return key
        return None

    def replace(self, why: str) -> None:
        """Kills a process that does not answer; a new one starts in the background."""
        if self._socket is not None:
            self._failed(why)

    def unlearn(self) -> bool:
        """Starts another process at once, which imports nothing that only the script does. Returns whether it does."""
        if self.is_off or not self._folder:
            return False
        try:
            open(os.path.join(self._folder, UNLEARNED_FILE), "w").close()
        except OSError:
            pass  # a restarted agent learns again
        self._folder = ""
        self._end()
        self.start()
        return True

    def close(self) -> None:
        """Ends the process, for good."""
        self.is_off = True
        self._end()

    # --- the process ------------------------------------------------------------------------------

    def _spawn(self) -> None:
        program = shutil.which(self._command.interpreter, path=self.environ.get("PATH"))
        if program is None:
            raise FileNotFoundError(2, "command not found")
        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        roots = [os.path.dirname(package), os.path.dirname(dtj_contract.__path__[0])]
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reader, writer = os.pipe()
        theirs.set_inheritable(True)
        arguments = [
            self._command.interpreter, *self._command.options, "-c", PROGRAM, "\n".join(sorted(set(roots))),
            str(theirs.fileno()), str(os.getpid()), "1" if self._guarded else "0", self._needs.to_json(),
            ",".join(self._modules), ",".join(self._left_out), self._folder, self._written, " " * ARGUMENT_ROOM_BYTES,
        ]  # fmt: skip
        try:
            actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
            actions += [(os.POSIX_SPAWN_DUP2, writer, 1), (os.POSIX_SPAWN_DUP2, writer, 2)]  # type: ignore[list-item]
            self.pid = os.posix_spawn(
                program, arguments, {ROOM: " " * ROOM_BYTES, **self.environ}, file_actions=actions, setsigmask=(),
                setsigdef=(signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ),
                **OWN_SESSION,
            )  # fmt: skip
        except OSError:
            ours.close()
            os.close(reader)
            raise
        finally:
            theirs.close()
            os.close(writer)
        pid = self.pid
        self._spared[pid] = lambda status: self._ended(pid, status)
        os.set_blocking(reader, False)
        ours.setblocking(False)
        self._socket, self._output, self._importing, self.why = ours, reader, "", "it is importing"
        self._loop.watch(ours, READ, lambda events: self.read())
        self._loop.watch(reader, READ, lambda events: self._copy())
        self._expect_news()
        self._look()

    def _look(self) -> None:
        """Continues a process that a signal has stopped: an attempt may wait for its imports or its forks."""
        if is_stopped(self.pid):
            self.log("warm process %d: a signal has stopped it; it is continued" % self.pid)
            os.kill(self.pid, signal.SIGCONT)
        self._look_timer = self._loop.later(names.WARM_LOOK_SECONDS, self._look)

    def _expect_news(self) -> None:
        self._cancel_timer()
        self._timer = self._loop.later(names.WARM_IMPORT_SECONDS, self._silent)

    def _silent(self) -> None:
        if not self._is_needed(self._importing):  # whose files may be cached at the next try
            self._leave_out(self._importing, "its import took more than %d s" % names.WARM_IMPORT_SECONDS)
        self._failed("the import of %s took more than %d s" % (self._importing, names.WARM_IMPORT_SECONDS))

    def read(self) -> None:
        """Takes the messages that have come."""
        while self._socket is not None:
            try:
                data = self._socket.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            message = _parse(data)
            if message is None:
                self._crashed("it ended")
                return
            self._take(message)

    def _take(self, message: Dict[str, Any]) -> None:
        if "importing" in message:
            self._importing = str(message["importing"])
            self._expect_news()
        elif "leftOut" in message:
            text = "warm process: no module %s (%s)"
            text += "; it is imported ahead for each rank" if message.get("byRank") else ""
            self.log(text % (message["leftOut"], message.get("why")))
        elif "unknown" in message:
            self.log("warm process: what the script has imported can't be found out: %s" % message["unknown"])
        elif "learned" in message:
            text = "warm process: %s modules that the script imported are imported for its next start, in %s s"
            self.log(text % (message["learned"], message.get("seconds")))
            self.has_learned = True
        elif "ahead" in message:
            text = "warm process: %s modules that the script imported are imported ahead for each rank, in %s s"
            self.log(text % (message["ahead"], message.get("seconds")))
            self.has_learned = True
        elif "unfit" in message:
            self._begin_without(str(message["unfit"]), str(message.get("why")))
        elif "off" in message:
            self._turn_off(str(message["off"]))
        elif "refused" in message:
            self.why = str(message["refused"])
            self.on_change()
        elif "ready" in message:
            self._cancel_timer()
            self.is_ready, self._ready_at, self.why = True, self._loop.clock(), ""
            self.has_learned = bool(message.get("hasLearned"))
            text = "warm process %d is ready: %s modules in %s s; workers are forked from it"
            self.log(text % (self.pid, message["ready"], message.get("seconds")))
            self.on_change()

    def _ended(self, pid: int, status: int) -> None:
        if pid == self.pid and self._socket is not None:
            self.read()  # the last message may explain the end
        if pid == self.pid and self._socket is not None:
            self._crashed("it ended with wait status %d" % status)

    def _crashed(self, why: str) -> None:
        """Handles an end without a word: a module that is being imported may be the reason."""
        if self._importing and not self.is_ready and self._failures:
            self._leave_out(self._importing, why)
        self._failed(why)

    def _is_needed(self, module: str) -> bool:
        """Returns whether no process is of use without this module."""
        return module in self._needs.modules[:1]

    def _leave_out(self, module: str, why: str) -> None:
        if module and module not in self._left_out:
            self.log("warm process: %s is not imported into it: %s" % (module, why))
            self._left_out.append(module)

    def _begin_without(self, module: str, why: str) -> None:
        """Starts another process at once, which leaves the module out: their number bounds the tries."""
        self._leave_out(module, why)
        self._end()
        if self._is_needed(module):
            self._turn_off("%s %s" % (module, why))
            return
        self.start()
        self.on_change()

    def _failed(self, why: str) -> None:
        """Ends the process; the next one starts after a pause, or never if several have ended soon.

        A pod with too little memory may lose each of them to the kernel's out-of-memory killer.
        """
        lived = self.is_ready and self._loop.clock() - self._ready_at > names.WARM_LIVED_SECONDS
        self._failures = 1 if lived else self._failures + 1
        self._end()
        if any(map(self._is_needed, self._left_out)) or self._failures > names.WARM_TRIES:
            self._turn_off(why)
            return
        self.why = why
        self.log("warm process: %s; the next one starts in the background" % why)
        self._timer = self._loop.later(min(60.0, names.WARM_RETRY_SECONDS * 2 ** (self._failures - 1)), self.start)
        self.on_change()

    def _turn_off(self, why: str) -> None:
        self.is_off, self.why = True, why
        self._end()
        self.log("workers are started without a warm process: %s" % why)
        self.on_change()

    def _end(self) -> None:
        self._cancel_timer()
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None
        self._copy()
        if self._socket is not None:
            self._loop.unwatch(self._socket)
            self._socket.close()
            self._socket = None
            if self.pid in self._spared:
                # Reaped later. Until then no other process can have this pid.
                os.kill(self.pid, signal.SIGKILL)
        if self._output is not None:
            self._loop.unwatch(self._output)
            os.close(self._output)
            self._output = None
        self.is_ready = self.has_learned = False

    def _copy(self) -> None:
        """Copies what the process prints, warnings of an import for example, to the log of the pod."""
        while self._output is not None:
            try:
                data = os.read(self._output, CHUNK)
            except BlockingIOError:
                return
            if not data:
                self._loop.unwatch(self._output)
                os.close(self._output)
                self._output = None
                return
            lines = self._lines.feed(data)
            if lines:
                self.on_output(lines)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _parse(data: bytes) -> Optional[Dict[str, Any]]:
    try:
        message = json.loads(data) if data else None
    except ValueError:
        return None
    return message if isinstance(message, dict) else None
