"""The faults of a simulated world, drawn from its seed. simulator.py lists them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dtj_core.plan.model import Object
from dtj_operator.kube.resources import BY_KIND, JOB, POD, SERVICE, STATEFUL_SET
from tests.unit.operator.simulated_api import is_pod_of, labelled, owner_uids

if TYPE_CHECKING:
    from tests.unit.operator.simulator import World

FAULT_SECONDS = 90.0


class Faults:
    def __init__(self, world: World) -> None:
        rng = world.rng
        self._world = world
        self.calls = rng.choice((0.0, 0.0, 0.02, 0.1, 0.3))
        """Share of the calls that fail."""
        self.kills = rng.choice((0.0, 0.01, 0.05))
        """Share of the calls at which the operator is killed."""
        self.stale = rng.choice((0.0, 0.0, 2.0, 15.0))
        """Longest delay of a watch, in seconds."""
        self.events = rng.choice((0.0, 0.05, 0.3))
        """Share of the looks at a watch at which it breaks or expires; as many times events come twice."""
        self.pages = rng.choice((0.0, 0.1, 0.5))
        """Share of the agents' answers that are silent, old or invalid."""
        self.active = True
        self.struck: list[str] = []
        for _ in range(rng.randrange(1, 12)):
            world.after(rng.uniform(0.0, FAULT_SECONDS), self._strike)

    def stop(self) -> None:
        """Ends all faults, and repairs what no controller repairs."""
        self.active = False
        cluster = self._world.cluster
        for node in cluster.nodes:
            cluster.bring_back(node)
        self._world.detector.stop()
        self._quota_raised()
        self._remove_foreign()
        self.remove_orphans()
        for job in self._world.api.of(JOB.plural):
            self._release(job["metadata"]["uid"])

    # --- decided at each call -------------------------------------------------------------------------------------

    def of_call(self, write: str) -> str:
        """Returns what happens to a call; "" for nothing. `write`: what it changes, "" for a read."""
        rng = self._world.rng
        if not self.active:
            return ""
        if rng.random() < self.kills:
            return rng.choice(("kill before", "kill after"))
        if rng.random() < self.calls:
            return rng.choice(("429", "500", "503", "lost", *(("late", "conflict") if write else ())))
        return ""

    def read_age(self) -> float:
        rng = self._world.rng
        return rng.uniform(0.0, self.stale) if self.active and self.stale and rng.random() < 0.3 else 0.0

    def of_watch(self) -> str:
        """Returns what happens to a watch that has events; "" for nothing."""
        rng = self._world.rng
        chance = rng.random() if self.active else 1.0
        return rng.choice(("gone", "broken")) if chance < self.events else "twice" if chance < 2 * self.events else ""

    def of_page(self, page: Object, pages: list[Object]) -> Object | None:
        rng = self._world.rng
        if not self.active or rng.random() >= self.pages:
            return page
        kind = rng.choice(("silent", "old", "invalid", "other"))
        if kind == "silent":
            return None
        if kind == "old":
            return rng.choice(pages)
        if kind == "other":
            return {**page, "uid": "another"}
        broken = {"attempt": "7", "restarts": [1], "failures": {"x": 1}, "startTime": float("nan"), "progress": 3}
        broken["leader"] = rng.choice((None, {"ordinal": 9, "pod": "digits-9", "epoch": "x"}, 3))
        return {**page, **{name: broken[name] for name in rng.sample(sorted(broken), 2)}}

    # --- strikes --------------------------------------------------------------------------------------------------

    def _strike(self) -> None:
        world, rng = self._world, self._world.rng
        strikes = {
            "the operator is killed": self._kill_operator,
            "two operators": world.start_second_operator,
            "a pod is deleted": self._delete_pod,
            "a pod is evicted": self._evict_pod,
            "an agent crashes": self._crash_agent,
            "a node is lost": self._lose_node,
            "the quota is spent": self._spend_quota,
            "a child is deleted": self._delete_child,
            "pods are orphaned": self._orphan,
            "the Service is edited": self._edit_service,
            "the StatefulSet is scaled": self._scale,
            "the job is scaled": self._scale_job,
            "the job is suspended": partial(self.edit_job, suspend=True),
            "the job is resumed": partial(self.edit_job, suspend=False),
            "the budget is raised": self._raise_budget,
            "a deadline is set": partial(self.edit_job, activeDeadlineSeconds=rng.choice((20, 200))),
            "the job is deleted": self.delete_job,
            "the job is recreated": self._recreate_job,
            "the spec is changed": self._change_spec,
            "somebody else has the name": self.take_name,
        }
        name = rng.choice(list(strikes))
        self.struck.append(name)
        world.log_line(f"fault: {name}")
        strikes[name]()

    def _kill_operator(self) -> None:
        for operator in list(self._world.operators)[:1]:
            self._world.kill(operator)

    def _pick_pod(self) -> Object | None:
        pods = [pod for pod in self._world.api.of(POD.plural) if labelled(pod)]
        return self._world.rng.choice(pods) if pods else None

    def _delete_pod(self) -> None:
        pod = self._pick_pod()
        if pod is not None:
            self._world.api.delete(POD, pod["metadata"]["name"])

    def _evict_pod(self) -> None:
        pod = self._pick_pod()
        if pod is not None:
            self._world.cluster.evict(pod, by_kubelet=self._world.rng.random() < 0.5)

    def _crash_agent(self) -> None:
        running = [agent for agent in self._world.agents.known.values() if agent.running]
        if running:
            self._world.agents.crash(self._world.rng.choice(running))

    def _lose_node(self) -> None:
        alive = [node for node in self._world.cluster.nodes if node.alive]
        if len(alive) > 1:
            self._world.cluster.lose(self._world.rng.choice(alive), self._world.rng.uniform(10.0, 200.0))

    def _spend_quota(self) -> None:
        self._world.cluster.quota_spent = True
        self._world.after(self._world.rng.uniform(1.0, 60.0), self._quota_raised)

    def _quota_raised(self) -> None:
        self._world.cluster.quota_spent = False

    def _ours(self) -> list[Object]:
        return [
            found for kind in ("StatefulSet", "Service", "Secret") for found in self._world.api.of(BY_KIND[kind].plural)
        ]

    def _delete_child(self) -> None:
        children = [found for found in self._ours() if labelled(found)]
        if children:
            child = self._world.rng.choice(children)
            self._world.api.delete(BY_KIND[child["kind"]], child["metadata"]["name"])

    def _orphan(self) -> None:
        """Deletes StatefulSets as `kubectl delete --cascade=orphan` does."""
        for child in filter(labelled, self._world.api.of(STATEFUL_SET.plural)):
            uid = child["metadata"]["uid"]
            for pod in self._world.api.of(POD.plural):
                if uid in owner_uids(pod):
                    bare = {**pod, "metadata": pod["metadata"] | {"ownerReferences": []}}
                    self._world.api.replace(POD, pod["metadata"]["name"], lambda _, bare=bare: bare)  # type: ignore[misc]
            self._world.api.remove(STATEFUL_SET, child["metadata"]["name"])

    def _edit_service(self) -> None:
        service = self._world.api.find(SERVICE.plural, self._world.name)
        if service is not None:
            edited = {**service, "spec": service["spec"] | {"publishNotReadyAddresses": False}}
            self._world.api.replace(SERVICE, self._world.name, lambda _: edited)

    def _scale(self) -> None:
        child = self._world.api.find(STATEFUL_SET.plural, self._world.name)
        if child is not None and labelled(child):
            edited = {**child, "spec": child["spec"] | {"replicas": self._world.rng.choice((0, 1, 5))}}
            self._world.api.replace(STATEFUL_SET, self._world.name, lambda _: edited)

    # --- the user -------------------------------------------------------------------------------------------------

    def edit_job(self, **fields: object) -> None:
        def change(job: Object) -> Object | None:
            known = job["spec"].get("activeDeadlineSeconds")
            given = {name: value for name, value in fields.items() if name != "activeDeadlineSeconds" or known is None}
            return {**job, "spec": job["spec"] | given}

        self._world.api.replace(JOB, self._world.name, change)

    def _raise_budget(self) -> None:
        job = self._world.job
        if job is not None:
            self.edit_job(restart=job["spec"]["restart"] | {"maxRestarts": 50})

    def _scale_job(self) -> None:
        job = self._world.job
        if job is not None and "elastic" in job["spec"]:
            self.edit_job(replicas=self._world.rng.randrange(1, 5))

    def _change_spec(self) -> None:
        """Changes what only a suspended job may change."""
        job = self._world.job
        if job is not None and job["spec"]["suspend"]:
            self.edit_job(replicas=self._world.rng.randrange(1, 5))

    def delete_job(self) -> None:
        """Deletes the job: at once, after its children, or after somebody's finalizer."""
        world = self._world
        how = world.rng.choice(("background", "foregroundDeletion", "somebody.else/waits"))
        job = world.job
        if job is None:
            return
        if how != "background" and not job["metadata"].get("finalizers"):
            held = {**job, "metadata": job["metadata"] | {"finalizers": [how]}}
            world.api.replace(JOB, world.name, lambda _: held)
        world.api.delete(JOB, world.name)
        world.after(1.0, world.cluster._collect_garbage)
        if how == "somebody.else/waits":
            world.after(world.rng.uniform(1.0, 40.0), partial(self._release, job["metadata"]["uid"]))

    def _release(self, uid: str) -> None:
        """Removes somebody's finalizer from a job that is being deleted."""
        job = self._world.job
        if job is None or job["metadata"]["uid"] != uid or "deletionTimestamp" not in job["metadata"]:
            return
        if "foregroundDeletion" not in job["metadata"].get("finalizers", ()):
            self._world.api.remove(JOB, self._world.name)

    def _recreate_job(self) -> None:
        """Replaces the job as `kubectl replace --force` does."""
        self.delete_job()
        # A second one that waited for the free name would wait while the job of the first lives.
        if not self._world.is_recreating:
            self._world.create_job_when_free()

    def take_name(self) -> None:
        """Creates a StatefulSet of the job's name that is not the job's, where the name is free."""
        if self._world.api.find(STATEFUL_SET.plural, self._world.name) is None:
            spec = {"replicas": 0, "template": {"spec": {"containers": [{"name": "web"}]}}}
            body = {"metadata": {"name": self._world.name, "labels": {"app": "web"}}, "spec": spec}
            self._world.foreign = self._world.api.create(STATEFUL_SET, body)
            self._world.after(self._world.rng.uniform(5.0, 200.0), self._remove_foreign)

    def remove_orphans(self) -> None:
        """Deletes the pods that people have orphaned, as the condition of a job that needs their names demands."""
        uid = "" if self._world.job is None else self._world.job["metadata"]["uid"]
        for pod in self._world.api.of(POD.plural):
            if not owner_uids(pod) and not is_pod_of(pod, uid):
                self._world.api.delete(POD, pod["metadata"]["name"])

    def _remove_foreign(self) -> None:
        foreign, self._world.foreign = self._world.foreign, None
        if foreign is not None:
            self._world.checks.is_untouched(foreign)
            self._world.api.remove(STATEFUL_SET, self._world.name)
