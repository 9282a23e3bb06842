"""A fork of the warm process that imports what the script has imported, and then serves in its place.

The warm process serves meanwhile, so no worker waits for these imports. A module that must not be in
a process that is forked costs one fork: its package is left out for good, and the next one is tried.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import random
import select
import signal
import sys
import time
from typing import AbstractSet, ClassVar, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from dtj_agent.warm import child, learned, preload, script
from dtj_agent.warm.learned import Learned

# The warm processes that may be replaced by a fork, each of which waits for the next.
GENERATIONS = 4
TRIES = 8  # in a row; each leaves one more package out
IMPORT_SECONDS = 60.0  # one module, in the background
LEAST_ROOM_BYTES = 1 << 30
CGROUP = "/sys/fs/cgroup"
# The idle time after each import, as a share of its own, and at most.
REST_SHARE, REST_SECONDS = 2.0, 1.0
BEGINNING, DONE, BAD = "importing", "done", "bad"
PER_RANK = frozenset((
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE", "DTJ_ATTEMPT",
    "DTJ_STARTED_AT",
))  # fmt: skip


class Verdict(NamedTuple):
    """The end of a try: the packages that can't stay, with the reason; none if the successor serves."""

    bad: str
    why: str
    modules: int = 0
    seconds: float = 0.0


class Successor:
    """One try, as the warm process sees it. `fileno` is readable when there is news."""

    def __init__(self, pid: int, pipe: int, now: float) -> None:
        self.pid = pid
        self.until = now + IMPORT_SECONDS
        self._pipe = pipe
        self._importing = ""
        self._text = b""

    def fileno(self) -> int:
        return self._pipe

    def news(self, now: float) -> Optional[Verdict]:
        """Returns the verdict if there is one: also of a process that ended without, or imports for too long."""
        ended = False
        while select.select([self._pipe], [], [], 0)[0]:
            data = os.read(self._pipe, 65536)
            if not data:
                ended = True
                break
            self._text += data
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            message = json.loads(line)
            if DONE in message:
                return Verdict("", "", message[DONE], message["seconds"])
            if BAD in message:
                return Verdict(message[BAD], message["why"])
            self._importing, self.until = message[BEGINNING], now + IMPORT_SECONDS
        if ended:
            return Verdict(learned.package(self._importing) or "?", "its import ended the process")
        if now > self.until:
            return Verdict(learned.package(self._importing) or "?", "its import took more than %d s" % IMPORT_SECONDS)
        return None

    def end(self) -> None:
        """Kills and reaps it."""
        os.close(self._pipe)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def has_room(root: str = CGROUP) -> bool:
    """Returns whether the container has memory for another copy of what the ranks have imported."""
    try:
        limit, used = (_read_number(os.path.join(root, "memory." + name)) for name in ("max", "current"))
        with open(os.path.join(root, "memory.stat")) as file:
            cached = [int(line.split()[1]) for line in file if line.startswith("inactive_file ")]
    except (OSError, ValueError):
        return True  # no limit, or none that can be seen
    return limit - used + sum(cached) >= LEAST_ROOM_BYTES


def _read_number(path: str) -> int:
    with open(path) as file:
        return int(file.read())


def begin(
    found: Learned, skipped: Sequence[str], command: Sequence[str], announce: Optional[preload.Send]
) -> Optional[Successor]:
    """Forks a successor; returns None in the successor, once it has imported everything and may serve.

    `announce`: given if an attempt may wait for it: it takes no rests then, and names each module.
    """
    reader, writer = os.pipe()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(writer)
        return Successor(pid, reader, time.monotonic())
    os.close(reader)
    child.end_with_parent(parent)
    started, before = time.monotonic(), len(sys.modules)
    _make_background(True)
    verdict = _import_all(found, skipped, command, writer, announce)
    if verdict is not None:
        _write(writer, {BAD: verdict.bad, "why": verdict.why})
        os._exit(0)
    gc.collect()
    gc.freeze()
    _make_background(False)
    _write(writer, {DONE: len(sys.modules) - before, "seconds": round(time.monotonic() - started, 2)})
    os.close(writer)
    return None


def _import_all(
    found: Learned, skipped: Sequence[str], command: Sequence[str], writer: int, announce: Optional[preload.Send]
) -> Optional[Verdict]:
    sockets, state, argv = _sockets(), _process_state(), sys.argv
    sys.argv = _WatchedArguments(argv)
    watched = os.environ.__class__
    _WatchedEnvironment.read, _WatchedEnvironment.watched = set(), PER_RANK.union(found.changed)
    os.environ.__class__ = _WatchedEnvironment
    try:
        for name in found.modules:
            bad = learned.package(name)
            if name in sys.modules or bad in found.left_out or name in skipped or bad in skipped:
                continue
            _write(writer, {BEGINNING: name})
            if announce is not None:
                announce({"importing": name})
            began = time.monotonic()
            why = _import(name) or preload.unfit() or _left_behind(sockets)
            if why is None and _WatchedEnvironment.read:
                why = "it reads %s when it is imported" % ", ".join(sorted(_WatchedEnvironment.read))
            if why is None and getattr(sys.argv, "read", False):
                why = "it reads the script's arguments when it is imported"
            if why is None and _process_state() != state:
                why = "it configures logging, or draws or seeds random numbers, when it is imported"
            if why is None and command:
                why = script.shadowed(command)
            if why is not None:
                return Verdict(bad, why)
            if announce is None:
                time.sleep(min(REST_SECONDS, REST_SHARE * (time.monotonic() - began)))
    finally:
        os.environ.__class__ = watched
        sys.argv = argv
    return None


def _import(name: str) -> Optional[str]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (name + ".").startswith("%s." % error.name):
            return None  # made by the script, or removed since
        return "raises when it is imported (%s)" % str(error)[:200]
    except BaseException as error:  # noqa: BLE001 (an import may raise anything, SystemExit too)
        return "raises when it is imported (%s: %s)" % (type(error).__name__, str(error)[:200])
    return None


def _left_behind(sockets: Set[str]) -> Optional[str]:
    """Returns what an import has left that no fork may inherit."""
    if _sockets() - sockets:
        return "it has opened a socket"
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return "it has started a process"


def _sockets() -> Set[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink("/proc/self/fd/" + number))
        except OSError:
            continue  # the folder's own descriptor
    return {target for target in found if target.startswith("socket:")}


def _process_state() -> Tuple[object, ...]:
    """Returns what the script may set before its own imports, which may then change it again."""
    root = logging.getLogger()
    draw_state = getattr(getattr(sys.modules.get("torch"), "default_generator", None), "get_state", None)
    drawn = [] if draw_state is None else draw_state().tolist()
    return (list(root.handlers), root.level, root.manager.disable, random.getstate(), drawn)


class _WatchedArguments(List[str]):
    """sys.argv while modules are imported: they are the warm process's, not the script's."""

    read = False

    def __getitem__(self, place):  # type: ignore[no-untyped-def]
        self.read = True
        return super().__getitem__(place)

    def __iter__(self):  # type: ignore[no-untyped-def]
        self.read = True
        return super().__iter__()

    def __contains__(self, value: object) -> bool:
        self.read = True
        return super().__contains__(value)

    def __len__(self) -> int:
        self.read = True
        return super().__len__()


class _WatchedEnvironment(type(os.environ)):  # type: ignore[misc]
    """os.environ while modules are imported: notes what differs between ranks, which no import here can know."""

    read: ClassVar[Set[str]] = set()
    watched: ClassVar[AbstractSet[str]] = PER_RANK

    def __getitem__(self, key: str) -> str:
        if key in self.watched:
            self.read.add(key)
        return super().__getitem__(key)  # type: ignore[no-any-return]


def _make_background(background: bool) -> None:
    """Yields the processor, and dies first if memory runs out; both can be taken back, as niceness can't."""
    try:
        policy = os.SCHED_BATCH if background else os.SCHED_OTHER
        os.sched_setscheduler(0, policy, os.sched_param(0))
        global _adjustment
        with open("/proc/self/oom_score_adj", "r+") as file:
            if background:
                _adjustment = file.read()
                file.seek(0)
            file.write("1000" if background else _adjustment)
    except OSError:
        pass


_adjustment = "0"


def _write(pipe: int, message: Dict[str, object]) -> None:
    try:
        os.write(pipe, json.dumps(message).encode() + b"\n")
    except OSError:  # the warm process has ended
        os._exit(0)
