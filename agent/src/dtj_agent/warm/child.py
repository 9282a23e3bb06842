"""Turns a forked process into a worker: what a new interpreter would have, it gets here."""

from __future__ import annotations

import ctypes
import multiprocessing.process
import os
import signal
import socket
import sys
import time
from types import MappingProxyType
from typing import Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence

from dtj_agent.warm import learned, observe, process_view
from dtj_contract import names

PR_SET_PDEATHSIG = 1
PAUSE_SECONDS = 0.0005
LISTENER_SECONDS, FIRST_PAUSE_SECONDS = 0.5, 0.005


class Prepared(NamedTuple):
    """The part of a start that a fork does before it is a rank."""

    modules: FrozenSet[str]
    """The modules of the warm process, where this worker reports what it imports; else none."""
    changes: Mapping[str, Optional[str]] = MappingProxyType({})
    """Variables that imports of this worker alone have set; None: removed."""


class Birth(NamedTuple):
    """The start of a worker. `command` is that of an ordinary start: interpreter, options, script."""

    prepared: Prepared
    command: List[str]
    kept: List[str]
    """The variables of the warm process that the worker has too."""
    own: Dict[str, str]
    """All other variables of the worker."""
    output: int
    gate: int
    parent: int
    """The process that forked this one, and ends at once."""
    agent: int
    guarded: bool
    """Whether the worker must end with the agent, which is not the first process of a pod."""
    changed: Dict[str, str]
    """The variables that imports have set, and would set in an interpreter of the worker's own."""
    learning: str
    """The folder for what this worker imports; empty for all but one worker of a pod."""
    coordinator: str
    """The address that rank 0 will listen at; empty where nobody waits for it."""


def prepare(learns: bool) -> Prepared:
    """Gives a fork what a new interpreter has of its own. `learns`: whether it reports what it imports."""
    _reseed()
    # A new interpreter has a key of its own for connections between its processes.
    multiprocessing.process.current_process().authkey = os.urandom(32)
    return Prepared(frozenset(sys.modules) if learns else frozenset())


def begin(birth: Birth) -> None:
    """Waits for the agent, then makes this process an ordinary worker but for the script."""
    os.setsid()
    os.dup2(birth.output, 1)
    os.dup2(birth.output, 2)
    os.close(birth.output)
    _wait_for_agent(birth)
    if birth.guarded:
        # Before this process has fallen to the agent, the signal would be for the process between.
        while os.getppid() == birth.parent:
            time.sleep(PAUSE_SECONDS)
        end_with_parent(birth.agent)
    set_environment(birth.kept, {**birth.own, **birth.changed}, birth.prepared.changes)
    process_view.show(birth.command, birth.own)
    rank, attempt = int(os.environ["RANK"]), int(os.environ[names.ENV_ATTEMPT])
    try:
        stack_file = os.environ.get(names.ENV_STACK_FILE, "")
        report = learned.report_of(birth.learning, birth.command, birth.prepared.modules) if birth.learning else None
        observe.install(rank, attempt, os.environ[names.ENV_AGENT_SOCKET], stack_file, report)
        if report is not None and "torch" not in sys.modules:  # no step will be counted
            learned.report_when_quiet(report)
    except Exception as error:  # noqa: BLE001 (a training must not fail because it can't be observed)
        print("[agent] the training can't be observed: %r" % error, file=sys.stderr, flush=True)
    if birth.coordinator:
        wait_for_listener(birth.coordinator)


def wait_for_listener(address: str, seconds: float = LISTENER_SECONDS) -> None:
    """Waits until a process listens at an address of numbers, for so many seconds at most.

    All ranks begin within some milliseconds. The client of gRPC, which JAX and TensorFlow have, tries again after a
    second only.
    """
    host, _, port = address.rpartition(":")
    host, deadline, pause = host.strip("[]"), time.monotonic() + seconds, FIRST_PAUSE_SECONDS
    try:
        socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    except OSError:
        return  # a name might be resolved for long
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, int(port)), max(0.01, deadline - time.monotonic())).close()
            return
        except OSError:
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause *= 2


def end_with_parent(parent: int) -> None:
    """Requests SIGKILL for when the parent dies, and ends now if it is dead already."""
    _set_death_signal(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Takes `end_with_parent` back."""
    _set_death_signal(0)


def _set_death_signal(number: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def _wait_for_agent(birth: Birth) -> None:
    """Sends the pid, and waits until the agent knows it; ends if the agent gives this worker up."""
    try:
        os.write(birth.gate, b"%d" % os.getpid())
        answer = os.read(birth.gate, 1)
    except OSError:
        answer = b""
    if not answer:
        os._exit(0)
    os.close(birth.gate)


def set_environment(
    kept: Sequence[str], own: Mapping[str, str], changes: Mapping[str, Optional[str]] = MappingProxyType({})
) -> None:
    """Gives this process `own` beside the variables named in `kept`, and then `changes`; None removes a variable."""
    target = {name: os.environ[name] for name in kept if name in os.environ}
    target.update(own)
    for name, changed in changes.items():
        if changed is None:
            target.pop(name, None)
        else:
            target[name] = changed
    # Only what differs is written, because threads of an import may read the others meanwhile.
    for name in os.environ.keys() - target.keys():
        del os.environ[name]
    for name, value in target.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _reseed() -> None:
    """Seeds the generators that a new interpreter seeds for each process; Python's own does so at a fork."""
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is not None:
        generator.seed()
    seed = getattr(sys.modules.get("numpy.random"), "seed", None)
    if seed is not None:
        seed()
