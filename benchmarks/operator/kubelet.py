"""Makes the pods of the control plane run, as far as the API shows, as fast as the API server takes it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from benchmarks.operator.planes import NAMESPACE, send, watch
from hack.cluster.controlplane import ControlPlane
from hack.cluster.shell import ProvisionError

THREADS = 4
MERGE = "application/merge-patch+json"


class Kubelet:
    """Watches the pods. `address` returns the address of a pod, by its name."""

    def __init__(self, plane: ControlPlane, address: Callable[[str], str]) -> None:
        self._plane, self._address = plane, address
        self._stop = threading.Event()
        self._pods: queue.Queue[Any] = queue.Queue()
        self._done: set[str] = set()
        """Uids of pods that run."""
        self.started = 0
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(THREADS)]
        self._threads.append(threading.Thread(target=self._watch, daemon=True))

    def __enter__(self) -> Kubelet:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for _ in range(THREADS):
            self._pods.put(None)
        for thread in self._threads:
            thread.join(30)

    def _watch(self) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        for event in watch(self._plane, path, self._stop):
            if event["type"] != "DELETED":
                self._pods.put(event["object"])

    def _work(self) -> None:
        while (pod := self._pods.get()) is not None:
            try:
                self._tend(pod["metadata"])
            except ProvisionError as error:
                if ": 404 " not in str(error):
                    raise

    def _tend(self, metadata: Any) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{metadata['name']}"
        if "deletionTimestamp" in metadata:
            send(self._plane, "DELETE", path, {"gracePeriodSeconds": 0})
            return
        if metadata["uid"] in self._done:
            return
        self._done.add(metadata["uid"])
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        address = self._address(metadata["name"])
        container = {"name": "trainer", "ready": True, "restartCount": 0, "image": "i", "imageID": "i", "started": True}
        status = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "startTime": now,
            "conditions": [{"type": t, "status": "True"} for t in ("PodScheduled", "Ready", "ContainersReady")],
            "containerStatuses": [container | {"state": {"running": {"startedAt": now}}}],
        }
        send(self._plane, "PATCH", path + "/status", {"status": status}, MERGE)
        self.started += 1
