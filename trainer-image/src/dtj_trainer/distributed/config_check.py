"""Finds ranks that were started differently before they train, and names the difference."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

from dtj_contract import names
from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.errors import RankMismatch


def flatten(config: Any, prefix: str = "") -> dict[str, str]:
    """Returns a config's fields by dotted name."""
    out: dict[str, str] = {}
    for f in fields(config):
        value = getattr(config, f.name)
        if is_dataclass(value) and not isinstance(value, type):
            out[f"{prefix}{f.name}"] = type(value).__name__
            out |= flatten(value, f"{prefix}{f.name}.")
        else:
            out[f"{prefix}{f.name}"] = repr(value)
    return out


def files_digest(files: Iterable[Path]) -> str:
    """Returns the SHA-256 over the files' contents, shortened to 16 characters."""
    sha = hashlib.sha256()
    for path in files:
        sha.update(path.read_bytes())
    return sha.hexdigest()[:16]


def code_digest() -> str:
    """Returns a digest of this package's sources and of the script that was started."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    script = [Path(main)] if main and Path(main).is_file() else []
    return files_digest([*sorted(Path(__file__).parents[1].rglob("*.py")), *script])


def startup_facts(config: Any, group: Group, env: WorkerEnv, checkpoint: CheckpointConfig) -> dict[str, str]:
    """Returns what must be the same on every rank: the config, what the environment adds to it, and the code."""
    given: dict[str, object] = {
        names.ENV_CHECKPOINT_KEEP: env.checkpoint_keep,
        names.ENV_ATTEMPT: env.attempt,
        names.ENV_MIN_REPLICAS: env.elastic,
        names.ENV_ELASTIC_BATCH: env.elastic_batch,
        names.ENV_ELASTIC_LEARNING_RATE: env.elastic_learning_rate,
    }
    if checkpoint.directory is None:
        given[names.ENV_CHECKPOINT_DIR] = env.checkpoint_dir
    if checkpoint.every_steps is None:
        given[names.ENV_CHECKPOINT_EVERY] = env.checkpoint_every
    return (
        flatten(config)
        | {name: "not set" if value is None else str(value) for name, value in given.items()}
        | {
            "world size": str(group.world_size),
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            "code": code_digest(),
            "device": group.device.type,
            "backend": group.backend,
        }
    )


def check(facts: Mapping[str, str], group: Group) -> None:
    """Compares this rank's facts with those of all others; a collective. Raises as `compare` does."""
    compare(group.all_objects(dict(facts)))


def compare(everyone: Sequence[Mapping[str, str]]) -> None:
    """Compares the facts of all ranks, in rank order.

    Raises RankMismatch with the first difference of each rank that differs from rank 0.
    """
    first, *others = everyone
    found = []
    for rank, theirs in enumerate(others, start=1):
        different = [k for k in sorted(first.keys() | theirs.keys()) if first.get(k) != theirs.get(k)]
        if different:
            key = different[0]
            more = f" and {len(different) - 1} more" if len(different) > 1 else ""
            found.append(f"rank {rank} has {key}={theirs.get(key)}, rank 0 has {key}={first.get(key)}{more}")
    if found:
        raise RankMismatch("ranks were started differently: " + "; ".join(found[:3]))
