"""A group of pods on the kind cluster, seen by the records of its ranks on the shared volume.

All containers of kind share one kernel, and so one monotonic clock and one table of processes: a fault's time here is
comparable with a step's in a pod, and a rank can be killed without the delay of `kubectl exec`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos import kind_report
from tests.chaos.records import Records
from tests.e2e.conftest import drop_namespace, make_namespace
from tests.e2e.kit import Kubectl, Object, environment, wait_until

MOUNT = "/app/bench"
VOLUME = "/checkpoints"
RECOVERY_SECONDS, START_SECONDS, END_SECONDS = 180.0, 300.0, 180.0
SCRIPTS = Path(__file__).parent
SECURITY: Object = {
    "runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}  # fmt: skip
CONFINED: Object = {
    "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
}  # fmt: skip


def use_cluster() -> None:
    """Lets kubectl and the helpers of the tests find the kind cluster."""
    os.environ.update({key: value for key, value in environment().items() if key not in os.environ or key == "PATH"})


@contextmanager
def namespace(name: str, *scripts: Path) -> Iterator[tuple[Kubectl, Path]]:
    """Yields a namespace of kind with the claim `shared` and these scripts in the ConfigMap `bench`, and its folder."""
    use_cluster()
    # Otherwise `timeout` would leave the namespace behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    shared = Path(os.environ["DTJ_SHARED_DIR"])
    kubectl = make_namespace(f"{name}-{uuid.uuid4().hex[:4]}", shared)
    try:
        kubectl("create", "configmap", "bench", *(f"--from-file={path}" for path in scripts))
        yield kubectl, shared / kubectl.namespace
    finally:
        drop_namespace(kubectl, shared)


def image() -> str:
    """Returns the trainer image that `make images` pushed."""
    command = [sys.executable, "-m", "hack.images", "names"]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    return dict(line.split("=", 1) for line in lines)["trainer"]


def environ(**variables: object) -> list[Object]:
    """Returns the variables of a container."""
    return [{"name": name, "value": str(value)} for name, value in variables.items()]


@dataclass
class Group:
    """Pods of one label, and what their ranks have written."""

    kubectl: Kubectl
    folder: Path
    selector: str
    size: int
    status: Callable[[], object] = lambda: None
    """The state that a message of a failed wait shows."""
    records: Records = field(default_factory=Records)

    def look(self) -> Records:
        """Returns the records of all pods so far."""
        if (self.folder / "log").is_dir():
            self.records.read(self.folder / "log")
        return self.records

    def wait(self, what: str, condition: Callable[[Records], Any], seconds: float) -> Any:
        """Waits for a condition of the records."""
        detail = lambda: json.dumps(self.status(), indent=1)  # noqa: E731
        return wait_until(what, lambda: condition(self.look()), timeout=seconds, detail=detail)

    def pods(self) -> dict[str, Object]:
        """Returns the pods by name."""
        return {pod["metadata"]["name"]: pod for pod in self.kubectl.list("pods", self.selector)}

    def wait_ready(self, size: int | None = None) -> None:
        """Waits until so many pods are ready, by default all ranks' pods, and no other is terminating."""

        def settled() -> bool:
            pods = self.pods().values()
            return kind_report.count_ready(pods) == len(pods) == (size or self.size)

        wait_until("all pods ready", settled, timeout=START_SECONDS, detail=lambda: json.dumps(self.status()))

    def wait_whole(self, seconds: float = START_SECONDS) -> None:
        """Waits until the newest attempt has all ranks, and each has done steps."""
        self.wait("the whole group", self._is_whole, seconds)

    def _is_whole(self, records: Records) -> bool:
        newest = records.newest
        return records.worlds.get(newest) == self.size and records.group_steps.get(newest, 0) >= 3

    def recovered(self, since: float, before: int) -> dict[str, Any]:
        """Waits until an attempt after `before` has all ranks and steps, and returns its figures.

        The seconds end when all ranks have done the attempt's first step. A group that does not come back in time
        is a figure too: `hang`.
        """
        try:
            self.wait(
                "steps of a new attempt",
                lambda r: r.newest > before and self._is_whole(r),
                RECOVERY_SECONDS,
            )
        except AssertionError as error:
            print(error, file=sys.stderr, flush=True)
            return {"hang": True}
        records = self.records
        newest = records.newest
        done = max((one.step for one in records.steps if one.attempt <= before), default=0)
        resumed = next(one.step for one in records.begins if one.attempt == newest)
        return {"seconds": records.first_steps[newest] - since, "lost_steps": done - resumed}

    def kill(self, rank: int) -> float:
        """Kills the process of a rank with SIGKILL. Returns when."""
        host, _, inner = self.records.processes()[rank].rpartition("-")
        pids = [pid for pid in pids_in_containers(int(inner)) if variable(pid, "HOSTNAME") == host]
        assert len(pids) == 1, f"{len(pids)} processes of {host} have the pid {inner} in a container: {pids}"
        now = time.monotonic()
        os.kill(pids[0], signal.SIGKILL)
        return now


def pids_in_containers(inner: int) -> list[int]:
    """Returns the processes of this machine that have this pid in a container."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines = (folder / "status").read_text().splitlines()
        except OSError:
            continue
        (pids,) = [line.split()[1:] for line in lines if line.startswith("NSpid:")]
        if len(pids) > 1 and int(pids[-1]) == inner:
            found.append(int(folder.name))
    return found


def variable(pid: int, name: str) -> str | None:
    """Returns a variable of the environment in which a process was started."""
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    return dict(pair.partition("=")[::2] for pair in pairs).get(name)
