"""Starts the Ray node of a pod: the head, and then the job's command in its place; or a node that joins the head.

A node whose processes die is started again while the head lives, so that Ray's own recovery has its resources back.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
import time
from typing import List, Sequence

from dtj_agent.ray_node import forks, processes, sockets

HEAD_SECONDS = 300.0
"""For a head whose pod imports Ray from a slow volume."""
RESTARTS, RESTART_SECONDS = 3, 600.0
"""Starts after the first one within so many seconds; one more is a failed rank."""
LOOK_SECONDS = 0.2
CONNECT_SECONDS = 5.0
# The ports of Ray's workers are chosen by the kernel, because the nodes of `dtj run` share an address.
FLAGS = ("--disable-usage-stats", "--min-worker-port=0", "--max-worker-port=0")


def main(arguments: Sequence[str]) -> None:
    """Runs `head HERE PORT COMMAND...` or `node HERE HEAD PORT`."""
    kind, here, *others = arguments
    script = forks.start(forks.take_modules(os.environ))
    if kind == "head":
        port, *command = others
        head(script, here, port, command)
    host, port = others
    sys.exit(Node(script, here, host, port).run())


def head(script: str, here: str, port: str, command: List[str]) -> None:
    """Becomes the job's command once the head serves. A head that never does is a failed rank."""
    flags = ["--head", "--node-ip-address=" + here, "--port=" + port, "--include-dashboard=false", *FLAGS]
    pid = start(script, flags)
    status = processes.wait(pid, HEAD_SECONDS)
    if status is None:
        sys.exit("dtj: no Ray head after %d s" % HEAD_SECONDS)
    if status:
        sys.exit("dtj: the Ray head has not started: %s" % processes.end_of(status))
    os.execvp(command[0], command)


def start(script: str, flags: Sequence[str]) -> int:
    """Forks a process that runs `ray start FLAGS`, and returns its id.

    Ray is imported there: its generator is seeded once in a process and its imports draw from it, so forks of a process
    that has imported it have the same node id, and Ray ends a node that comes back with the id of a lost one.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if "--block" in flags:
        processes.die_with(parent)
        signal.signal(signal.SIGCHLD, _end_with_raylet)
    os.dup2(2, 1)
    forks.use(script)
    sockets.use_own_names()
    sys.argv = ["ray", "start", *flags]
    importlib.import_module("ray.scripts.scripts").main()
    sys.exit(0)


def _end_with_raylet(number: int, frame: object) -> None:
    """Ends `ray start --block` at once when its raylet has died; it would look once a second."""
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None or processes.name(ended.si_pid) != "raylet" or ended.si_status in (0, signal.SIGTERM):
        return
    how = "exit code" if ended.si_code == os.CLD_EXITED else "signal"
    os.write(2, b"dtj: the raylet has ended with %s %d\n" % (how.encode(), ended.si_status))
    os._exit(1)


class Node:
    """The Ray node of a pod without the head, and what starts it again."""

    def __init__(self, script: str, here: str, host: str, port: str) -> None:
        self._script, self._here, self._host, self._port = script, here, host, port
        self._pid = 0
        self._is_stopping = False

    def run(self) -> int:
        """Returns the exit code of the rank, once its Ray node may not be started again."""
        deadline = time.monotonic() + HEAD_SECONDS
        while not self._head_answers():
            if time.monotonic() > deadline:
                print("dtj: no Ray head at %s after %d s" % (self._address, HEAD_SECONDS), file=sys.stderr)
                return 1
            time.sleep(LOOK_SECONDS)
        processes.adopt_orphans()
        signal.signal(signal.SIGTERM, self._stop)
        starts: List[float] = []
        while True:
            starts.append(time.monotonic())
            status = self._once()
            # Its workers and agents; a raylet of this pod that is started meets none of them.
            left = processes.kill_children()
            code = processes.exit_code(status)
            if self._is_stopping or code == 0:
                return code
            why = "dtj: the Ray node has ended: %s; " % processes.end_of(status)
            recent = [moment for moment in starts[1:] if moment > time.monotonic() - RESTART_SECONDS]
            if left:
                print(why + "processes %s outlive SIGKILL" % left, file=sys.stderr, flush=True)
                return code
            if len(recent) >= RESTARTS:
                print(why + "it was started again %d times in %d s" % (RESTARTS, RESTART_SECONDS), file=sys.stderr)
                return code
            if not self._head_answers():
                print(why + "the head at %s does not answer" % self._address, file=sys.stderr)
                return code
            text = "the head at %s answers, so it is started again (%d of %d in %d s)"
            done = (self._address, len(recent) + 1, RESTARTS, RESTART_SECONDS)
            print(why + text % done, file=sys.stderr, flush=True)

    @property
    def _address(self) -> str:
        return ("[%s]:%s" if ":" in self._host else "%s:%s") % (self._host, self._port)

    def _head_answers(self) -> bool:
        try:
            socket.create_connection((self._host, int(self._port)), CONNECT_SECONDS).close()
        except OSError:
            return False
        return True

    def _once(self) -> int:
        """Returns the wait status of `ray start --block`."""
        flags = ["--block", "--address=" + self._address, "--node-ip-address=" + self._here, *FLAGS]
        self._pid = start(self._script, flags)
        if self._is_stopping:  # the signal came before the process had its id
            os.kill(self._pid, signal.SIGTERM)
        while True:
            pid, status = os.waitpid(-1, 0)  # orphans of the node too
            if pid == self._pid:
                return status

    def _stop(self, number: int, frame: object) -> None:
        self._is_stopping = True
        if self._pid:
            try:
                os.kill(self._pid, signal.SIGTERM)
            except ProcessLookupError:
                pass  # it has ended, and run() returns
