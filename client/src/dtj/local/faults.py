"""Injects faults on request, to demonstrate a recovery.

The flags are `--kill worker:RANK@step=S` and `--kill pod:ORDINAL@step=S`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dtj.errors import InputError
from dtj.local import processes
from dtj.local.cluster import LocalCluster
from dtj_contract import agent_status
from dtj_core.plan.progress import with_step

_FORM = re.compile(r"(worker|pod):(\d+)@step=(\d+)")


@dataclass(frozen=True)
class Fault:
    """SIGKILL to one worker, or to a whole pod, as soon as the job reports at least this step."""

    target: Literal["worker", "pod"]
    index: int
    """Global rank of the worker, or ordinal of the pod."""
    step: int

    def __str__(self) -> str:
        return f"{self.target}:{self.index}@step={self.step}"


def parse(text: str) -> Fault:
    """Parses a fault of the command line. Raises InputError."""
    match = _FORM.fullmatch(text)
    if not match:
        raise InputError(f"--kill {text}: write worker:RANK@step=STEP or pod:ORDINAL@step=STEP, as in worker:1@step=40")
    return Fault("worker" if match[1] == "worker" else "pod", int(match[2]), int(match[3]))


def check(faults: Sequence[Fault], *, replicas: int, processes_per_pod: int, spares: int = 0) -> None:
    """Raises InputError for a target that the job does not have."""
    for fault in faults:
        count = replicas * processes_per_pod if fault.target == "worker" else replicas + spares
        if fault.index >= count:
            raise InputError(f"--kill {fault}: the job has {fault.target}s 0 to {count - 1}")


class FaultInjector:
    """Injects faults when their step is reached. `pending` holds the remaining ones."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.pending = sorted(faults, key=lambda fault: fault.step)

    async def inject(self, cluster: LocalCluster) -> list[str]:
        """Injects the faults that are due at the last reported step. Returns a line for each."""
        agent = cluster.agent
        if not agent or agent.get("phase") != agent_status.RUNNING:
            return []  # recovering: wait until the group trains again
        step = with_step(agent.get("progress") or {}).get("step", -1)
        done = []
        for fault in [fault for fault in self.pending if fault.step <= step]:
            if action := await self._kill(fault, cluster):
                self.pending.remove(fault)
                done.append(f"--kill {fault}: {action} at step {step}")
        return done

    @staticmethod
    async def _kill(fault: Fault, cluster: LocalCluster) -> str | None:
        if fault.target == "pod":
            if fault.index not in cluster.pods:
                return None
            name = cluster.pods[fault.index].object["metadata"]["name"]
            await cluster.lose_pod(fault.index)
            return f"SIGKILL to every process of pod {name}"
        tag = f"{cluster.host.job_uid}/"
        pid = next((ranks[fault.index] for ranks in processes.workers(tag).values() if fault.index in ranks), None)
        if pid is None or not processes.kill(pid, tag):
            return None
        return f"SIGKILL to rank {fault.index} (process {pid})"
