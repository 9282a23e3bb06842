"""A kubelet that runs nothing."""

from __future__ import annotations

import contextlib
import http.client
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from hack.cluster.controlplane import ControlPlane
from hack.cluster.shell import ProvisionError
from tests.integration.controlplane.support import Objects, agent_address


class Kubelet:
    """Marks the namespace's pods as scheduled and running, with addresses of this machine.

    Deleted pods end.
    """

    def __init__(self, plane: ControlPlane, namespace: str, *, schedules: bool = True) -> None:
        """Leaves pods without a node alone if `schedules` is false: a scheduler runs beside it."""
        self.schedules = schedules
        self.objects = Objects(plane, namespace)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelet")
        self.container_states: dict[str, Any] = {}
        """By pod name, instead of running and ready."""
        self.held: set[str] = set()
        """Uids of pods whose containers don't end."""

    def __enter__(self) -> Kubelet:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            with contextlib.suppress(ProvisionError, OSError, http.client.HTTPException):
                for pod in self.objects.list("pods"):
                    self._tend(pod)

    def _tend(self, pod: Any) -> None:
        name, plane = pod["metadata"]["name"], self.objects.plane
        if "deletionTimestamp" in pod["metadata"]:
            if pod["metadata"]["uid"] in self.held:
                return
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
            plane.request("DELETE", self.objects.path("pods", name), options)
            return
        if not (self.schedules or pod["spec"].get("nodeName")):
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        state = self.container_states.get(name, {"state": {"running": {"startedAt": now}}})
        status = pod.get("status", {})
        known = [{k: c[k] for k in c if k in state} for c in status.get("containerStatuses", [])]
        if known and (name not in self.container_states or known[0] == state):
            return
        container = {"name": "trainer", "ready": True, "restartCount": 0, "image": "i", "imageID": "i"} | state
        pod["status"] = {
            "phase": "Running",
            "podIP": agent_address(),
            "podIPs": [{"ip": agent_address()}],
            "startTime": now,
            "conditions": [{"type": t, "status": "True"} for t in ("PodScheduled", "Ready", "ContainersReady")],
            "containerStatuses": [container],
        }
        plane.request("PUT", self.objects.path("pods", name) + "/status", pod)
