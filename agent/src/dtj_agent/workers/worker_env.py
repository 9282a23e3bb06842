"""The environment of a worker: the variables of its engine, and a few DTJ_* for the trainer library. Pure."""

from __future__ import annotations

from typing import Dict, List, Mapping

from dtj_agent import engines
from dtj_agent.engines import Place
from dtj_agent.group.member import Spawn
from dtj_agent.settings import AgentSettings
from dtj_contract import names

# Variables of the agent alone. A script that copies its environment into a log must not show them.
AGENT_ONLY = (
    names.ENV_PEERS, names.ENV_LISTEN, names.ENV_SECRET_FILE, names.ENV_STATE_DIR, names.ENV_TERMINATION_LOG,
    names.ENV_GRACE_SECONDS, names.ENV_STOP_GRACE_SECONDS,
    names.ENV_ATTEMPT_FLOOR, names.ENV_RENDEZVOUS_TIMEOUT, names.ENV_DIE_WITH_PARENT,
    names.ENV_PRELOAD, names.ENV_WARM_WORKERS, names.ENV_KUBEFLOW_PROGRESS,
    names.ENV_RESTART_RULES, names.ENV_MAX_WITHOUT_PROGRESS, names.ENV_GENERATION,
    names.ENV_HANG_POLICY, names.ENV_HANG_MIN_SECONDS, names.ENV_PROGRESS_DEADLINE,
    names.ENV_SUCCESS_POLICY, names.ENV_ENGINE,
)  # fmt: skip


def has_agent_store(settings: AgentSettings, environ: Mapping[str, str]) -> bool:
    """Returns whether the agent serves the rendezvous store; False if ranks, user or a launcher serve its port."""
    return engines.load(settings.engine).agent_store and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "False"


def ranks(settings: AgentSettings, spawn: Spawn) -> range:
    """Returns the global ranks of this pod."""
    first = spawn.node_rank * settings.processes
    return range(first, first + settings.processes)


def common_environment(settings: AgentSettings, inherited: Mapping[str, str]) -> Dict[str, str]:
    """Returns the variables that are the same for all ranks and attempts, those that libraries read at import too."""
    environment = {key: value for key, value in inherited.items() if key not in AGENT_ONLY}
    for name, value in engines.load(settings.engine).defaults(settings.processes).items():
        environment.setdefault(name, value)
    return environment


def worker_environment(
    settings: AgentSettings, inherited: Mapping[str, str], spawn: Spawn, local_rank: int, socket: str, error_file: str,
    stack_file: str, gpus: int = 0,
) -> Dict[str, str]:  # fmt: skip
    """Returns `inherited` with everything that the engine sets, and what every rank gets."""
    place = _place(settings, spawn, local_rank, error_file, gpus)
    environment = common_environment(settings, inherited)
    environment.update(engines.load(settings.engine).environment(place, inherited))
    environment.update({
        "WORLD_SIZE": str(place.world_size),
        "RANK": str(place.rank),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(settings.processes),
        names.ENV_ATTEMPT: str(spawn.attempt),
        names.ENV_AGENT_SOCKET: socket,
        names.ENV_STACK_FILE: stack_file,
        names.ENV_BACKEND: settings.backend,
        names.ENV_JOB: settings.job,
    })  # fmt: skip
    return environment


def command(settings: AgentSettings, spawn: Spawn) -> List[str]:
    """Returns the command of this pod's ranks."""
    return engines.load(settings.engine).command(_place(settings, spawn), settings.command)


def _place(settings: AgentSettings, spawn: Spawn, local_rank: int = 0, error_file: str = "", gpus: int = 0) -> Place:
    return Place(
        attempt=spawn.attempt,
        rank=ranks(settings, spawn)[local_rank],
        local_rank=local_rank,
        local_size=settings.processes,
        node_rank=spawn.node_rank,
        nodes=spawn.nodes,
        master=(spawn.master_addr, spawn.master_port),
        members=spawn.members,
        run_id=settings.uid,
        max_restarts=settings.max_restarts,
        error_file=error_file,
        gpus=gpus,
    )


def launcher_environment(settings: AgentSettings, spawn: Spawn, environment: Mapping[str, str]) -> Dict[str, str]:
    """Returns the variables that a launcher reads as its flags, as Kubeflow sets them; none for another command."""
    if not settings.launched:
        return {}
    return {
        "PET_NNODES": str(spawn.nodes),
        "PET_NPROC_PER_NODE": environment.get("PET_NPROC_PER_NODE") or str(settings.launched),
        "PET_NODE_RANK": str(spawn.node_rank),
        "PET_MASTER_ADDR": spawn.master_addr,
        "PET_MASTER_PORT": str(spawn.master_port),
    }
