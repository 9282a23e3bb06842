"""The place of one pod in an allocation, as Slurm and the job's script name it. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dtj.errors import InputError
from dtj_contract import names
from dtj_core.api import DistributedTrainingJob
from dtj_core.plan.model import Object

# Set by the script for `python -m dtj.slurm.pod`.
ENV_JOB = "DTJ_SLURM_JOB"  # the job as YAML
ENV_NODES = "DTJ_SLURM_NODES"  # names of the nodes, in Slurm's order
ENV_KEY = "DTJ_SLURM_KEY"  # of the agents of one step
ENV_VOLUMES = "DTJ_SLURM_VOLUMES"
ENV_CONTAINER = "DTJ_SLURM_CONTAINER"  # a command in front of the agent's, such as apptainer exec
ENV_TRACKER = "DTJ_SLURM_TRACKER"  # ProctrackType of Slurm
# Jobs that share a node have different ports, up to the first of the kernel's ephemeral ports.
PORTS = 32768 - names.AGENT_PORT


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """One node's place in a step of an allocation."""

    job_id: str
    run: str
    """Names the step, so that agents of an earlier one can't join."""
    ordinal: int
    nodes: tuple[str, ...]
    key: str
    volumes: Path
    container: tuple[str, ...]
    """A command that starts the agent in a container; () without one."""
    signals_reach_agents: bool
    """Whether Slurm signals all processes of a task. Most of its plugins signal the task alone."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Allocation:
        """Raises InputError if this is no task of a script that dtj has written."""
        job_id = _needed(environ, "SLURM_JOB_ID")
        step = _needed(environ, "SLURM_STEP_ID")
        nodes = tuple(_needed(environ, ENV_NODES).split())
        ordinal, node = int(_needed(environ, "SLURM_NODEID")), _needed(environ, "SLURMD_NODENAME")
        if nodes[ordinal : ordinal + 1] != (node,):
            raise InputError(f"SLURM_NODEID is {ordinal} on node {node}, which is not its place in {' '.join(nodes)}")
        return cls(
            job_id=job_id,
            run=f"slurm{job_id}-{environ.get('SLURM_RESTART_COUNT') or 0}-{step}",
            ordinal=ordinal,
            nodes=nodes,
            key=_needed(environ, ENV_KEY),
            volumes=Path(_needed(environ, ENV_VOLUMES)),
            container=tuple(shlex.split(environ.get(ENV_CONTAINER, ""))),
            signals_reach_agents=environ.get(ENV_TRACKER, "").endswith("linuxproc"),
        )

    @property
    def node(self) -> str:
        return self.nodes[self.ordinal]

    @property
    def marker(self) -> Path:
        """A file that the script has made on the first node, and in which it reads the job's exit code."""
        return self.volumes / f".dtj-slurm-{self.job_id}"

    @property
    def port(self) -> int:
        """The port of the agents."""
        return names.AGENT_PORT + int(self.job_id) % PORTS

    @property
    def peers(self) -> str:
        """The agents' addresses by ordinal."""
        return ",".join(f"{node}:{self.port}" for node in self.nodes)


def fit(job: Object, model: DistributedTrainingJob, nodes: int) -> Object:
    """Returns the job with a pod on each of `nodes` nodes. Raises InputError if they are too few.

    Nodes beyond the replicas hold spares. An elastic job may have fewer.
    """
    spec = model.spec
    least = spec.elastic.min_replicas if spec.elastic else spec.replicas
    if nodes < least:
        raise InputError(f"the allocation has {nodes} nodes, and the job needs {least}: sbatch --nodes={least}")
    replicas = min(nodes, spec.replicas)
    return {**job, "spec": {**job["spec"], "replicas": replicas, "spares": nodes - replicas}}


def _needed(environ: Mapping[str, str], name: str) -> str:
    if not (value := environ.get(name, "")):
        raise InputError(f"{name} is not set: start this by the script that `dtj submit --slurm` prints")
    return value
