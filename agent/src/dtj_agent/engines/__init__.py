"""Engines: the frameworks that the ranks of a job train with, and what each gives to a rank. Pure.

An engine is one module of this package, named like the value of `spec.engine`, with a constant ENGINE.
The rest of the agent knows only the interface here.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from dtj_agent.errors import SettingsError
from dtj_agent.warm_needs import WarmNeeds
from dtj_contract import names

Address = Tuple[str, int]


class Place(NamedTuple):
    """The place of a rank in an attempt, and the addresses at which the ranks meet."""

    attempt: int
    rank: int
    local_rank: int
    local_size: int
    """Ranks of each pod."""
    node_rank: int
    nodes: int
    master: Address
    """Address of the pod that has node rank 0, and a port there that no earlier attempt has used."""
    members: Tuple[Address, ...]
    """Address of every pod by node rank, and the first of its ports, one for each rank of the pod.
    Empty unless the engine has `rank_ports`."""
    run_id: str
    max_restarts: int
    error_file: str
    gpus: int
    """GPUs whose device files the pod has; 0: none, or unknown."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.local_size


def as_written(place: Place, written: Sequence[str]) -> List[str]:
    """Returns the job's command: each rank runs it."""
    return list(written)


class Engine(NamedTuple):
    """The needs of one framework.

    The same holds with every engine: exit code 0 is success (spec.successPolicy), a restart is a new
    attempt of all ranks, which load what they have saved, and SIGTERM asks a rank to save and to end.
    """

    environment: Callable[[Place, Mapping[str, str]], Dict[str, str]]
    """Returns the variables of a rank, given its place and the variables of the pod."""
    defaults: Callable[[int], Dict[str, str]]
    """Returns variables of all ranks and attempts that a pod of so many ranks has where the user sets none."""
    agent_store: bool
    """Whether the agent of node rank 0 serves torch's rendezvous store on the port of `Place.master`.
    Otherwise the port is free when rank 0 starts, for a server of its own."""
    rank_ports: bool
    """Whether each rank serves a port that all ranks must know."""
    warm: Optional[WarmNeeds]
    """None: each rank is started as a process of its own."""
    command: Callable[[Place, Sequence[str]], List[str]] = as_written
    """Returns the command of a rank, given that of the job."""
    one_rank: bool = False
    """Whether a pod has one rank, which starts what else the pod needs."""
    rank_zero_decides: bool = False
    """Whether the success of rank 0 is that of the job, because the other ranks end with it."""


def load(name: str) -> Engine:
    """Returns the engine of a spec. Raises SettingsError if this agent has none of that name."""
    module = "%s.%s" % (__name__, name)
    if not name.isalpha() or importlib.util.find_spec(module) is None:
        text = "%s: %r must be one of %s; an older agent knows fewer engines than its operator"
        raise SettingsError(text % (names.ENV_ENGINE, name, ", ".join(available())))
    engine: Engine = importlib.import_module(module).ENGINE
    return engine


def available() -> List[str]:
    """Returns the names of the engines that this agent has."""
    import pkgutil  # only an error needs it, and the agent stays small without it

    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def host_port(address: Address) -> str:
    """Returns `host:port`, with brackets around an IPv6 address."""
    host, port = address
    return "[%s]:%d" % (host, port) if ":" in host else "%s:%d" % (host, port)
