"""The environment that a worker was started with, by torchrun, by our agent, or by hand (then it is rank 0 of 1)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dtj_contract import names
from dtj_trainer.components.elastic import check_environment
from dtj_trainer.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerEnv:
    """The torchrun variables that are needed here, and the agent's own.

    None: not under our agent, or no checkpoint volume.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    launched: bool = False
    """Whether RANK and WORLD_SIZE were given, so that MASTER_ADDR and MASTER_PORT must be used."""
    backend: str = "auto"
    job: str | None = None
    namespace: str | None = None
    job_uid: str | None = None
    ordinal: int = 0
    local_pod: str | None = None
    """The pod's tag under `dtj run`, where pods share a machine."""
    attempt: int | None = None
    agent_socket: Path | None = None
    stack_file: Path | None = None
    """Where this worker registers for the agent's requests of its stacks."""
    checkpoint_dir: Path | None = None
    checkpoint_every: int | None = None
    checkpoint_keep: int | None = None
    elastic: bool = False
    """Whether the number of ranks may change between two attempts."""
    elastic_batch: str | None = None
    elastic_learning_rate: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(f"RANK={self.rank} must be at least 0 and below WORLD_SIZE={self.world_size}")
        if self.backend not in ("auto", "gloo", "nccl"):
            raise ConfigError(f"{names.ENV_BACKEND}={self.backend!r}: write gloo, nccl or auto")
        check_environment(self.elastic_batch, self.elastic_learning_rate)

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> WorkerEnv:
        """Reads the process environment.

        Raises ConfigError, which names the variable, for a value that can't work.
        """
        env = os.environ if environ is None else environ

        def number(name: str, default: int) -> int:
            try:
                return int(env.get(name) or default)
            except ValueError:
                raise ConfigError(f"{name}={env[name]!r}: write a whole number") from None

        def optional(name: str) -> int | None:
            return number(name, 0) if env.get(name) else None

        def path(name: str) -> Path | None:
            return Path(env[name]) if env.get(name) else None

        return cls(
            rank=number("RANK", 0),
            world_size=number("WORLD_SIZE", 1),
            local_rank=number("LOCAL_RANK", 0),
            local_world_size=number("LOCAL_WORLD_SIZE", 1),
            node_rank=number("GROUP_RANK", 0),
            launched="RANK" in env and "WORLD_SIZE" in env,
            backend=env.get(names.ENV_BACKEND) or "auto",
            job=env.get(names.ENV_JOB),
            namespace=env.get(names.ENV_NAMESPACE) or None,
            job_uid=env.get(names.ENV_JOB_UID) or None,
            ordinal=number(names.ENV_ORDINAL, 0),
            local_pod=env.get(names.ENV_LOCAL_POD) or None,
            attempt=optional(names.ENV_ATTEMPT),
            agent_socket=path(names.ENV_AGENT_SOCKET),
            stack_file=path(names.ENV_STACK_FILE),
            checkpoint_dir=path(names.ENV_CHECKPOINT_DIR),
            checkpoint_every=optional(names.ENV_CHECKPOINT_EVERY),
            checkpoint_keep=optional(names.ENV_CHECKPOINT_KEEP),
            elastic=bool(env.get(names.ENV_MIN_REPLICAS) or env.get(names.ENV_ELASTIC_BATCH)),
            elastic_batch=env.get(names.ENV_ELASTIC_BATCH) or None,
            elastic_learning_rate=env.get(names.ENV_ELASTIC_LEARNING_RATE) or None,
        )
