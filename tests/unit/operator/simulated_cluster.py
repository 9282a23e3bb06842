"""The rest of Kubernetes: garbage collector, StatefulSet controller, scheduler, kubelets, node controller."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

from dtj_contract import names
from dtj_core.plan.avoided_nodes import excluded_nodes
from dtj_core.plan.model import Object
from dtj_core.plan.times import rfc3339
from dtj_operator.kube.resources import BY_KIND, JOB, POD, STATEFUL_SET
from tests.unit.operator.simulated_api import owner_uids

if TYPE_CHECKING:
    from tests.unit.operator.simulator import World

NODE_SILENT_SECONDS = 40.0
ROOM = 4
"""Pods on a node."""
BACK_OFF_SECONDS = 1000.0
"""Longest pause of a StatefulSet's controller whose pods were rejected."""


class Node:
    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.cordoned = False


class Cluster:
    def __init__(self, world: World) -> None:
        self.world = world
        self.nodes = [Node(f"n{number}") for number in range(3)]
        self.quota_spent = False
        """Whether pods are rejected."""
        self._addresses = itertools.count(1)
        self._waking: set[str] = set()

    def changed(self, plural: str, kind: str, found: Object) -> None:
        """Receives every change of the API server's objects."""
        name, metadata = found["metadata"]["name"], found["metadata"]
        after, rng = self.world.after, self.world.rng
        if plural == STATEFUL_SET.plural and kind != "DELETED":
            self.wake(name)
        if plural == POD.plural:
            for owner in metadata.get("ownerReferences") or ():
                self.wake(owner["name"])
            if kind == "ADDED":
                after(rng.uniform(0.02, 0.5), partial(self._schedule, metadata["uid"], name))
            elif kind == "DELETED":
                self.world.agents.pod_removed(found)
            elif "deletionTimestamp" in metadata:
                grace = float(metadata["deletionGracePeriodSeconds"])
                after(rng.uniform(0.05, max(0.1, min(grace, 3.0))), partial(self._terminate, metadata["uid"], name))
        if kind == "DELETED" or (owner_uids(found) and not owner_uids(found) & self.world.api.uids()):
            after(rng.uniform(0.1, 3.0), self._collect_garbage)

    def _pod(self, uid: str, name: str) -> Object | None:
        found = self.world.api.find(POD.plural, name)
        return found if found is not None and found["metadata"]["uid"] == uid else None

    def set_status(self, name: str, **fields: Any) -> None:
        self.world.api.replace(POD, name, lambda pod: {**pod, "status": pod["status"] | fields})

    # --- garbage collector ----------------------------------------------------------------------------------------

    def _collect_garbage(self) -> None:
        uids = self.world.api.uids()
        leaving = [
            found
            for found in self.world.api.objects.values()
            if found["metadata"].get("ownerReferences") and not owner_uids(found) & uids
        ]
        for found in leaving:
            metadata = found["metadata"]
            if "deletionTimestamp" not in metadata:
                self.world.log_line(f"garbage collector: {found['kind']} {metadata['name']}")
                self.world.api.delete(BY_KIND[found["kind"]], metadata["name"])
        for job in self.world.api.of(JOB.plural):
            self._delete_foreground(job)

    def _delete_foreground(self, job: Object) -> None:
        """Deletes the children of a job that waits for them, then the job."""
        if "foregroundDeletion" not in job["metadata"].get("finalizers", ()):
            return
        uid, api = job["metadata"]["uid"], self.world.api
        children = [found for found in api.objects.values() if uid in owner_uids(found)]
        for child in children:
            if "deletionTimestamp" not in child["metadata"]:
                api.delete(BY_KIND[child["kind"]], child["metadata"]["name"])
        if not children:
            api.remove(JOB, job["metadata"]["name"])

    # --- StatefulSet controller -----------------------------------------------------------------------------------

    def wake(self, name: str) -> None:
        if name not in self._waking:
            self._waking.add(name)
            self.world.after(self.world.rng.uniform(0.05, 0.4), partial(self._sync, name))

    def _sync(self, name: str) -> None:
        self._waking.discard(name)
        api = self.world.api
        child = api.find(STATEFUL_SET.plural, name)
        if child is None or "deletionTimestamp" in child["metadata"]:
            return
        uid, wanted = child["metadata"]["uid"], child["spec"]["replicas"]
        for ordinal in range(wanted):
            pod = api.find(POD.plural, f"{name}-{ordinal}")
            if pod is None:
                if self.quota_spent:
                    self.world.after(BACK_OFF_SECONDS, partial(self.wake, name))
                    return
                api.create(POD, _pod_of(child, ordinal))
            elif uid in owner_uids(pod):
                if pod["status"].get("phase") == "Failed":
                    api.delete(POD, pod["metadata"]["name"], grace=0)
            elif not owner_uids(pod) and "deletionTimestamp" not in pod["metadata"]:
                owners = [_owner(child)]
                api.replace(
                    POD,
                    pod["metadata"]["name"],
                    lambda pod, owners=owners: {**pod, "metadata": pod["metadata"] | {"ownerReferences": owners}},  # type: ignore[misc]
                )
        for pod in api.of(POD.plural):
            if uid in owner_uids(pod) and int(pod["metadata"]["name"].rpartition("-")[2]) >= wanted:
                api.delete(POD, pod["metadata"]["name"])
        status = {"observedGeneration": child["metadata"]["generation"], "replicas": wanted}
        api.replace(STATEFUL_SET, name, lambda child: {**child, "status": status})

    # --- scheduler and kubelet ------------------------------------------------------------------------------------

    def _schedule(self, uid: str, name: str) -> None:
        pod = self._pod(uid, name)
        if pod is None or "deletionTimestamp" in pod["metadata"]:
            if pod is not None:
                self._terminate(uid, name)
            return
        taken = [each["spec"].get("nodeName") for each in self.world.api.of(POD.plural)]
        banned = excluded_nodes(pod)
        open_nodes = [n for n in self.nodes if n.alive and not n.cordoned and n.name not in banned]
        rooms = [n for n in open_nodes if taken.count(n.name) < ROOM]
        if not rooms:
            reason = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector"
            self._set_condition(pod, "PodScheduled", "False", reason="Unschedulable", message=reason)
            self.world.after(4.0, partial(self._schedule, uid, name))
            return
        node = self.world.rng.choice(rooms).name
        self.world.log_line(f"scheduler: {name} to {node}")
        self.world.api.replace(POD, name, lambda pod: {**pod, "spec": pod["spec"] | {"nodeName": node}})
        self._set_condition(pod, "PodScheduled", "True")
        slow = self.world.rng.random() < 0.1
        self.world.after(self.world.rng.uniform(0.3, 25.0 if slow else 2.0), partial(self._start, uid, name))

    def _set_condition(self, pod: Object, kind: str, value: str, **fields: str) -> None:
        condition = {"type": kind, "status": value, "lastTransitionTime": rfc3339(self.world.wall()), **fields}

        def change(live: Object) -> Object:
            known = live["status"].get("conditions", ())
            old = next((c for c in known if c["type"] == kind), {})
            if old.get("status") == value:
                condition["lastTransitionTime"] = old["lastTransitionTime"]
            others = [c for c in known if c["type"] != kind]
            return {**live, "status": live["status"] | {"conditions": [*others, condition]}}

        self.world.api.replace(POD, pod["metadata"]["name"], change)

    def _start(self, uid: str, name: str) -> None:
        pod = self._pod(uid, name)
        if pod is None or "deletionTimestamp" in pod["metadata"]:
            return
        if not self.node_of(pod).alive:
            self.world.after(5.0, partial(self._start, uid, name))
            return
        address = f"10.0.0.{next(self._addresses)}"
        self.set_status(name, phase="Running", podIP=address, containerStatuses=[self.container({}, 0)])
        self._set_condition(pod, "Ready", "True")
        self._set_condition(pod, "ContainersReady", "True")
        started = self._pod(uid, name)
        assert started is not None
        self.world.agents.pod_started(started, address)

    def container(self, last: Object, restarts: int, **state: Any) -> Object:
        return {
            "name": names.CONTAINER,
            "image": "trainer:cpu",
            "ready": not state,
            "restartCount": restarts,
            "state": state or {"running": {"startedAt": rfc3339(self.world.wall())}},
            "lastState": {"terminated": last} if last else {},
        }

    def _terminate(self, uid: str, name: str) -> None:
        pod = self._pod(uid, name)
        if pod is None:
            return
        if pod["spec"].get("nodeName") and not self.node_of(pod).alive:
            return  # nobody confirms it
        self.world.agents.pod_stopped(uid)
        self.world.api.remove(POD, name)

    def container_ends(self, uid: str, name: str, code: int, message: str) -> None:
        """Ends the container, and restarts it as a StatefulSet's pods are restarted."""
        pod = self._pod(uid, name)
        if pod is None or "containerStatuses" not in pod["status"]:
            return
        status = pod["status"]["containerStatuses"][0]
        last = {"exitCode": code, "reason": "Error" if code else "Completed", "message": message}
        last["finishedAt"] = rfc3339(self.world.wall())
        restarts = status["restartCount"]
        self.set_status(name, containerStatuses=[self.container({}, restarts, terminated=last)])

        def restart() -> None:
            if self._pod(uid, name) is not None:
                self.set_status(name, containerStatuses=[self.container(last, restarts + 1)])
                self.world.agents.container_restarted(uid)

        self.world.after(self.world.rng.uniform(0.5, 5.0), restart)

    # --- nodes ----------------------------------------------------------------------------------------------------

    def node_of(self, pod: Object) -> Node:
        return next(node for node in self.nodes if node.name == pod["spec"].get("nodeName"))

    def lose(self, node: Node, seconds: float) -> None:
        """Takes the node away; the node controller and the taints follow, then the node returns."""
        node.alive = False
        self.world.agents.check()
        self.world.after(NODE_SILENT_SECONDS, partial(self._not_ready, node))
        self.world.after(NODE_SILENT_SECONDS + 30.0, partial(self._taint, node))
        self.world.after(seconds, partial(self.bring_back, node))

    def _on(self, node: Node) -> list[Object]:
        return [pod for pod in self.world.api.of(POD.plural) if pod["spec"].get("nodeName") == node.name]

    def _not_ready(self, node: Node) -> None:
        for pod in self._on(node):
            if not node.alive and pod["status"].get("phase") == "Running":
                self._set_condition(pod, "Ready", "False")

    def _taint(self, node: Node) -> None:
        for pod in self._on(node):
            if not node.alive and "deletionTimestamp" not in pod["metadata"]:
                self._set_condition(
                    pod, "DisruptionTarget", "True", reason="DeletionByTaintManager", message="node is lost"
                )
                self.world.api.delete(POD, pod["metadata"]["name"])

    def bring_back(self, node: Node) -> None:
        if node.alive:
            return
        node.alive = True
        for pod in self._on(node):
            if "deletionTimestamp" in pod["metadata"]:
                self._terminate(pod["metadata"]["uid"], pod["metadata"]["name"])
            elif pod["status"].get("phase") == "Running":
                self._set_condition(pod, "Ready", "True")
        self.world.agents.check()

    def evict(self, pod: Object, *, by_kubelet: bool) -> None:
        name = pod["metadata"]["name"]
        if by_kubelet:
            self.world.agents.pod_stopped(pod["metadata"]["uid"])
            self.set_status(name, phase="Failed", reason="Evicted", message="The node was low on resource: memory.")
        else:
            self._set_condition(
                pod, "DisruptionTarget", "True", reason="EvictionByEvictionAPI", message="Eviction API: evicting"
            )
            self.world.api.delete(POD, name)


def _owner(child: Object) -> Object:
    metadata = child["metadata"]
    return {"kind": "StatefulSet", "name": metadata["name"], "uid": metadata["uid"], "controller": True}


def _pod_of(child: Object, ordinal: int) -> Object:
    template = child["spec"]["template"]
    metadata = template.get("metadata") or {}
    return {
        "metadata": {
            "name": f"{child['metadata']['name']}-{ordinal}",
            "labels": (metadata.get("labels") or {}) | {names.LABEL_POD_INDEX: str(ordinal)},
            "annotations": metadata.get("annotations") or {},
            "ownerReferences": [_owner(child)],
        },
        "spec": template["spec"],
        "status": {"phase": "Pending"},
    }
