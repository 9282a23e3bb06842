"""Imports installed modules outside of the script, and detects what would have been different in it."""

from __future__ import annotations

import importlib
import logging
import os
import random
import signal
import sys
import weakref
from collections import deque
from types import TracebackType
from typing import (
    AbstractSet,
    Any,
    ClassVar,
    Deque,
    FrozenSet,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    Type,
)

from dtj_agent.warm import preload
from dtj_agent.warm.learned import Learned
from dtj_agent.warm.rank_variables import RankVariables
from dtj_agent.warm.script_changes import importing
from dtj_agent.warm.seeds import Seeds

_SIGNALS = sorted(signal.valid_signals())


class Obstacle(NamedTuple):
    """Why a module can't stay in this process; `by_rank`: whether it can in a process that becomes one rank."""

    why: str
    by_rank: bool = False


class WatchedImports:
    """A context in which `fetch` imports modules.

    `of_rank`: whether this process has the variables of one rank, and is not forked any more.
    `found`: what was learned of the script. `arguments`: those of the script; None if they are not known.
    """

    def __init__(
        self, of_rank: bool, found: Learned, variables: RankVariables, arguments: Optional[Sequence[str]]
    ) -> None:
        self._of_rank = of_rank
        self._sockets, self._shared = _sockets(), _shared_by_forks()
        self._state = _process_state()
        self._numpy, self._drawn = _numpy_state(), random.getstate()
        self._argv, self._arguments = sys.argv, arguments
        self._expected = list(sys.argv if arguments is None else arguments)
        self._environ = os.environ  # which an import may replace
        self._class: Type[Any] = os.environ.__class__
        self._changed, self._after_seed = found.changed, found.after_seed
        self._variables = variables

    def __enter__(self) -> WatchedImports:
        sys.argv = _WatchedArguments(self._argv) if self._arguments is None else list(self._arguments)
        _WatchedEnvironment.used, _WatchedEnvironment.stale = set(), set()
        _WatchedEnvironment.changed = self._changed
        os.environ.__class__ = _WatchedEnvironment
        self._seeds = Seeds()
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], where: Optional[TracebackType]
    ) -> None:
        self._seeds.end()
        self._environ.__class__ = self._class
        sys.argv = self._argv

    def fetch(self, name: str) -> Optional[Obstacle]:
        """Imports one module; returns why it can't stay."""
        raised = _import(name)
        opened = preload.open_accelerator() or _open_devices(self._variables.needs.devices)
        left = opened or _left_behind(self._sockets)
        if left is not None:
            return Obstacle(left)
        used = _WatchedEnvironment.used
        unknown = _WatchedEnvironment.stale.union(filter(self._variables.is_per_attempt, used))
        if unknown:
            return Obstacle(_reads(unknown))
        of_rank = set() if self._of_rank else set(filter(self._variables.is_per_rank, used))
        if raised is not None:
            # Perhaps because this process has no such variable.
            return Obstacle(raised, by_rank=bool(of_rank))
        if getattr(sys.argv, "read", False):
            return Obstacle("it reads the script's arguments when it is imported")
        # Not `!=`, which would count as a read.
        if not (isinstance(sys.argv, list) and list.__eq__(sys.argv, self._expected)):
            return Obstacle("it changes the script's arguments when it is imported")
        # The import of numpy itself is the first that can be asked.
        self._numpy = self._numpy or _numpy_state()
        if _process_state() != self._state or _numpy_state() != self._numpy or self._seeds.called:
            what = "configures logging, signals or multiprocessing, or seeds random numbers (or draws those of torch)"
            return Obstacle("it %s, when it is imported" % what)
        before, self._drawn = self._drawn, random.getstate()
        draws = before != self._drawn
        if draws and name in self._after_seed:
            return Obstacle("it draws random numbers when it is imported, and the script seeds them before")
        if self._of_rank:
            return None
        if draws:
            return Obstacle("it draws random numbers when it is imported, which ranks must not share", by_rank=True)
        if _shared_by_forks() - self._shared:
            return Obstacle("it creates a pipe, a lock or a temporary folder, which forks would share", by_rank=True)
        threads = preload.lasting_threads()
        if threads > 1:
            return Obstacle("it has started %d threads" % (threads - 1), by_rank=True)
        return Obstacle(_reads(of_rank), by_rank=True) if of_rank else None


def _reads(names: AbstractSet[str]) -> str:
    return "it reads %s when it is imported" % ", ".join(sorted(names))


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


def _open_devices(values: Sequence[str]) -> Optional[str]:
    """Returns which framework has opened its devices. `values`: see warm_needs.WarmNeeds.devices."""
    for each in values:
        module, _, attributes = each.partition(":")
        value: Any = sys.modules.get(module)
        for name in attributes.split("."):
            value = getattr(value, name, None)
        if value:
            return "it has opened the devices of %s" % module.partition(".")[0]
    return None


def _left_behind(sockets: AbstractSet[str]) -> Optional[str]:
    """Returns what an import has left that no other process may inherit."""
    if _sockets() - sockets:
        return "it has opened a socket"
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return "it has started a process"


def _shared_by_forks() -> FrozenSet[str]:
    """Returns what forks would share, or remove at their end: pipes, locks, temporary folders."""
    locks = getattr(sys.modules.get("multiprocessing.util"), "_afterfork_registry", {})
    ends = getattr(weakref.finalize, "_registry", {}).values()
    folders = [end for end in ends if getattr(end.func, "__module__", "") == "tempfile"]
    return frozenset((
        *_targets(("pipe:", "anon_inode:")),
        *("lock %d" % number for number in range(len(locks))),
        *("folder %d" % number for number in range(len(folders))),
    ))  # fmt: skip


def _sockets() -> FrozenSet[str]:
    return _targets(("socket:",))


def _targets(kinds: Tuple[str, ...]) -> FrozenSet[str]:
    """Returns what the open descriptors of these kinds are."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink("/proc/self/fd/" + number))
        except OSError:
            continue  # the folder's own descriptor
    return frozenset(target for target in found if target.startswith(kinds))


def _process_state() -> Tuple[object, ...]:
    """Returns what the script may set before its own imports, which may then change it again."""
    root = logging.getLogger()
    torch_state = getattr(getattr(sys.modules.get("torch"), "default_generator", None), "get_state", None)
    drawn = [] if torch_state is None else torch_state().tolist()
    handlers = [signal.getsignal(number) for number in _SIGNALS]
    context = getattr(sys.modules.get("multiprocessing.context"), "_default_context", None)
    method = getattr(context, "_actual_context", None)
    return (list(root.handlers), root.level, root.manager.disable, handlers, method, drawn)


def _numpy_state() -> Optional[List[int]]:
    found = getattr(sys.modules.get("numpy.random"), "get_state", None)
    if found is None:
        return None
    _, keys, place, _, _ = found()
    return [place, *keys.tolist()]


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
    """os.environ while modules are imported: notes the variables that are read or set.

    A loop over all of them, as to find those with a prefix or to copy them, uses none.
    """

    changed: ClassVar[Mapping[str, Sequence[str]]] = {}
    used: ClassVar[Set[str]] = set()
    stale: ClassVar[Set[str]] = set()
    """Those whose value, in the script, another than the package that uses them may have set."""
    passed: ClassVar[Optional[str]] = None
    listed: ClassVar[Deque[str]] = deque()
    """The variables that a finished loop has passed: dict() reads all of them after it."""

    def __iter__(self) -> Iterator[str]:
        keys = list(super().__iter__())
        watched = _WatchedEnvironment
        watched.listed.clear()
        try:
            # Variables of the script are not among them, and a package most likely looks for its own name.
            own = (importing() or "\0").upper() + "_"
            watched.stale.update(name for name, by in watched.changed.items() if not by and name.startswith(own))
            for key in keys:
                watched.passed = key
                yield key
            watched.listed.extend(keys)
        finally:
            watched.passed = None

    def __getitem__(self, key: str) -> str:
        if self.listed and key == self.listed[0]:
            self.listed.popleft()
        elif key != self.passed:
            self.listed.clear()
            self._use(key)
        return super().__getitem__(key)  # type: ignore[no-any-return]

    def __setitem__(self, key: str, value: str) -> None:
        if key in self.changed:
            self._use(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        if key in self.changed:
            self._use(key)
        super().__delitem__(key)

    def _use(self, key: str) -> None:
        if isinstance(key, str):  # os.get_exec_path tries bytes
            self.used.add(key)
            if key in self.changed and not self._is_set_here(self.changed[key]):
                self.stale.add(key)

    def _is_set_here(self, by: Sequence[str]) -> bool:
        """Returns whether all imports that set a variable are this process's too, and none of them is the script."""
        return bool(by) and (list(by) == [importing()] or all(name in sys.modules for name in by))
