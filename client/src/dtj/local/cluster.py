"""This machine as a cluster of one job.

A single object replaces an API server, a StatefulSet controller and a kubelet.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import os
import shutil
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from dtj.local import container, pods, processes
from dtj.local.kubelet import LocalPod
from dtj.local.loopback import Ports, agent_status
from dtj_contract import names
from dtj_contract.operator_message import encode
from dtj_core.plan.leader_search import LeaderSearch, pod_name
from dtj_core.plan.model import Apply, Delete, Event, Object, Observed, Plan
from dtj_core.plan.operator_message import operator_message

DEFAULT_GRACE_SECONDS = 30  # Kubernetes' own default


class LocalCluster:
    """Executes plans with processes on loopback, and observes the processes as pods.

    Use as an async context manager: whatever happens inside, no process of the job is left when it
    is closed.
    """

    def __init__(self, host: container.HostEnvironment, ports: Ports, *, now: Callable[[], datetime]) -> None:
        self.host = host
        self.events: list[Event] = []
        self.changed = asyncio.Event()
        """Set whenever a pod or an object has changed since the last `observe`."""
        self.pods: dict[int, LocalPod] = {}
        self.agent: dict[str, Any] | None = None
        """Status of the agent that coordinates, at the last `observe`."""
        self._leader = ""
        self._ports = ports
        self._now = now
        self._objects: dict[tuple[str, str], Object] = {}
        self._endings: set[asyncio.Task[None]] = set()

    async def observe(self, job: Object) -> Observed:
        """Returns the job's current children. Starts the pods that the StatefulSet requires."""
        self.changed.clear()
        self._control()
        name = job["metadata"]["name"]
        self.agent = await self._ask_leader(job)
        return Observed(
            stateful_set=copy.deepcopy(self._objects.get(("StatefulSet", name))),
            service=copy.deepcopy(self._objects.get(("Service", name))),
            pods=tuple(copy.deepcopy(pod.object) for _, pod in sorted(self.pods.items())),
            agent=self.agent,
        )

    async def execute(self, job: Object, plan: Plan) -> None:
        """Executes the actions, writes the status into `job`, and keeps the events."""
        for action in plan.actions:
            if isinstance(action, Apply):
                self._apply(action.body)
            elif isinstance(action, Delete):
                self._delete(action)
        if plan.status and plan.status != job.get("status"):
            job["status"] = copy.deepcopy(plan.status)
        self.events.extend(plan.events)

    async def lose_pod(self, ordinal: int) -> None:
        """Kills all processes of a pod at once and removes the pod, as when its node is lost.

        The StatefulSet then creates a new pod.
        """
        await self.pods[ordinal].lose()
        self.changed.set()

    async def close(self) -> None:
        """Stops every pod: SIGTERM, the pod's own grace period, SIGKILL."""
        self._objects.pop(("StatefulSet", self._name()), None)
        for pod in self.pods.values():
            self._end(pod, None)
        if self._endings:
            await asyncio.wait(self._endings)

    def kill(self) -> None:
        """Sends SIGKILL to every process of the job."""
        processes.kill_all(f"{self.host.job_uid}/")

    async def __aenter__(self) -> LocalCluster:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.close()
        finally:
            self.kill()

    async def _ask_leader(self, job: Object) -> dict[str, Any] | None:
        """Hands budget and size of the job to the agent that coordinates, as the operator does.

        Returns its status, else another agent's; None without an answer.
        """
        key, message = self._key(), encode(operator_message(job, (), self._now().timestamp()))
        ordinals = {pod_name(pod.object): ordinal for ordinal, pod in self.pods.items()}
        search = LeaderSearch([pod.object for pod in self.pods.values()], self._leader, {})
        while (asked := search.next()) is not None:
            page = await agent_status(self._ports.at(ordinals[pod_name(asked)]), key, message)
            if page is not None:
                search.add(asked, page)
        best = search.best()
        if best is None:
            return None
        self._leader = best.leader
        return best.page

    # --- the API server ---------------------------------------------------------------------------

    def _apply(self, body: Object) -> None:
        key = (body["kind"], body["metadata"]["name"])
        now = pods.timestamp(self._now())
        before = self._objects.get(key)
        live = copy.deepcopy(body)
        previous = (
            before["metadata"] if before else {"uid": str(uuid.uuid4()), "creationTimestamp": now, "generation": 0}
        )
        kept = {field: previous[field] for field in ("uid", "creationTimestamp", "generation")}
        live["metadata"] = {**live["metadata"], **kept}
        if before is None or before.get("spec") != body.get("spec"):
            live["metadata"]["generation"] += 1
        self._objects[key] = live
        if body["kind"] == "Secret":
            self._write_secret(live)
        self.changed.set()

    def _delete(self, action: Delete) -> None:
        if action.kind == "Pod":
            for pod in self.pods.values():
                if pod.object["metadata"]["uid"] == action.uid:
                    self._end(pod, action.grace_seconds)
            return
        live = self._objects.get((action.kind, action.name))
        if live is None or live["metadata"]["uid"] != action.uid:
            return
        del self._objects[action.kind, action.name]
        if action.kind == "StatefulSet":  # the garbage collector would delete its pods
            for pod in self.pods.values():
                self._end(pod, action.grace_seconds)
        self.changed.set()

    def _write_secret(self, secret: Object) -> None:
        folder = self.host.scratch_dir / "secret"
        folder.mkdir(mode=0o700, exist_ok=True)
        for key, value in secret["data"].items():
            with open(os.open(folder / key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(base64.b64decode(value))

    def _key(self) -> str:
        path: Path = self.host.scratch_dir / "secret" / names.SECRET_KEY
        return path.read_text().strip() if path.exists() else ""

    # --- the StatefulSet controller ---------------------------------------------------------------

    def _name(self) -> str:
        return next((name for kind, name in self._objects if kind == "StatefulSet"), "")

    def _control(self) -> None:
        """Removes pods that are gone, stops those beyond `replicas`, starts missing ones.

        Raises the error that broke a pod.
        """
        for ending in [ending for ending in self._endings if ending.done()]:
            self._endings.remove(ending)
            ending.result()
        gone = [ordinal for ordinal, pod in self.pods.items() if pod.gone]
        for ordinal in gone:
            lost = names.SNAPSHOT_FOLDER % (self.host.job_uid, self.pods[ordinal].object["metadata"]["uid"])
            shutil.rmtree(Path(names.SHM_DIR, lost), ignore_errors=True)
            del self.pods[ordinal]
        stateful_set = self._objects.get(("StatefulSet", self._name()))
        if stateful_set is None:
            return
        wanted = stateful_set["spec"].get("replicas", 1)
        for ordinal, pod in self.pods.items():
            if ordinal >= wanted:
                self._end(pod, None)
        for ordinal in range(wanted):
            if ordinal in gone:
                # The pod stays missing for one observation, as on a cluster, so that the planner
                # learns why the group restarts.
                self.changed.set()
            elif ordinal not in self.pods:
                self._start(stateful_set, ordinal, wanted)
        ready = sum(pods.container_status(pod.object)["ready"] for pod in self.pods.values())
        generation = stateful_set["metadata"]["generation"]
        stateful_set["status"] = {"observedGeneration": generation, "replicas": len(self.pods), "readyReplicas": ready}

    def _start(self, stateful_set: Object, ordinal: int, replicas: int) -> None:
        pod = pods.new_pod(stateful_set, ordinal, uid=str(uuid.uuid4()), node=self.host.node, now=self._now())
        peers = [self._ports.at(other) for other in range(replicas)]
        process = container.container(pod, self.host, peers)
        self.pods[ordinal] = LocalPod(
            pod, process, container.pod_tag(pod, self.host), now=self._now, changed=self.changed.set
        )

    def _end(self, pod: LocalPod, grace_seconds: float | None) -> None:
        if "deletionTimestamp" in pod.object["metadata"]:
            return
        if grace_seconds is None:
            grace_seconds = pod.object["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS)
        pods.set_deleted(pod.object, grace_seconds, self._now())
        self._endings.add(asyncio.create_task(pod.stop(grace_seconds)))
