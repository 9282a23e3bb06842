"""The environment of a worker: the variables that torchrun 2.13 sets, and a few DTJ_* for the trainer library. Pure."""

from __future__ import annotations

from typing import Dict, Mapping

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
    names.ENV_SUCCESS_POLICY,
)  # fmt: skip


def has_agent_store(environ: Mapping[str, str]) -> bool:
    """Returns whether the agent serves the rendezvous store; False if the user or a launcher serves MASTER_PORT."""
    return environ.get("TORCHELASTIC_USE_AGENT_STORE") != "False"


def ranks(settings: AgentSettings, spawn: Spawn) -> range:
    """Returns the global ranks of this pod."""
    first = spawn.node_rank * settings.processes
    return range(first, first + settings.processes)


def common_environment(settings: AgentSettings, inherited: Mapping[str, str]) -> Dict[str, str]:
    """Returns the variables that are the same for all ranks and attempts, those that libraries read at import too."""
    environment = {key: value for key, value in inherited.items() if key not in AGENT_ONLY}
    if settings.processes > 1:
        environment.setdefault("OMP_NUM_THREADS", "1")
    environment.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    return environment


def worker_environment(
    settings: AgentSettings, inherited: Mapping[str, str], spawn: Spawn, local_rank: int, socket: str, error_file: str,
    stack_file: str,
) -> Dict[str, str]:  # fmt: skip
    """Returns `inherited` with everything that torchrun sets. RESTART_COUNT is attempt - 1: the first attempt is 1."""
    world = spawn.nodes * settings.processes
    rank = ranks(settings, spawn)[local_rank]
    environment = common_environment(settings, inherited)
    environment.update({
        "MASTER_ADDR": spawn.master_addr,
        "MASTER_PORT": str(spawn.master_port),
        "WORLD_SIZE": str(world),
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(settings.processes),
        "GROUP_RANK": str(spawn.node_rank),
        "NODE_RANK": str(spawn.node_rank),  # not torchrun's; Composer and others read it
        "GROUP_WORLD_SIZE": str(spawn.nodes),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world),
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": settings.uid,
        "TORCHELASTIC_RESTART_COUNT": str(spawn.attempt - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(settings.max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": str(has_agent_store(inherited)),
        "TORCHELASTIC_ERROR_FILE": error_file,
        names.ENV_ATTEMPT: str(spawn.attempt),
        names.ENV_AGENT_SOCKET: socket,
        names.ENV_STACK_FILE: stack_file,
        names.ENV_BACKEND: settings.backend,
        names.ENV_JOB: settings.job,
    })  # fmt: skip
    return environment


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
