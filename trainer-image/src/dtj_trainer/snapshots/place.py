"""Where the snapshots of a run are in shared memory, and whose they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dtj_contract import names
from dtj_trainer.distributed.worker_env import WorkerEnv


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a run's snapshots are, and whose they are."""

    directory: Path
    job: str
    attempt: int
    pod: int
    state: int
    """Number of the State in this process, from 1."""

    def path(self, kind: str, rank: int) -> Path:
        """Returns the path of a file without its number."""
        return self.directory / f"{self.state}-{self.attempt}-{kind}-{rank}"

    def files(self) -> list[Path]:
        """Returns the files of this State, of any attempt and rank, in order."""
        try:
            return sorted(self.directory.glob(f"{self.state}-*"))
        except OSError:
            return []


def snapshot_directory(env: WorkerEnv) -> Path | None:
    """Returns the pod's folder in shared memory; None if no agent has started this worker."""
    if not env.job_uid:
        return None
    # Pods of `dtj run` share the machine's /dev/shm. A pod that is replaced is another one.
    pod = env.local_pod.rpartition("/")[2] if env.local_pod else str(env.ordinal)
    return Path(names.SHM_DIR, names.SNAPSHOT_FOLDER % (env.job_uid, pod))
