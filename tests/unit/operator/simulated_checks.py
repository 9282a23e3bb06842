"""The invariants of a simulated world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.plan.conditions import find_condition, is_finished, is_true
from dtj_core.plan.model import Object
from dtj_core.plan.stuck_pods import OVERDUE_SECONDS
from dtj_core.plan.times import unix
from dtj_operator.kube.resources import EVENT, JOB, POD, SERVICE, STATEFUL_SET, Resource
from tests.unit.operator.condition_history import ConditionHistory
from tests.unit.operator.simulated_api import is_pod_of, owner_uids

if TYPE_CHECKING:
    from tests.unit.operator.simulator import World

COUNTERS = ("inPlace", "pod", "counted", "total")
BY_CLOCK = (Reason.DEADLINE_EXCEEDED, Reason.STARTUP_DEADLINE_EXCEEDED)
FINAL = (Reason.SUCCEEDED, Reason.RESTART_BUDGET_SPENT, *BY_CLOCK)


class Checks:
    def __init__(self, world: World) -> None:
        self._world = world
        self.history = ConditionHistory(world)
        self.ended: dict[str, str] = {}
        """How each job ended, by uid."""

    # --- at each write --------------------------------------------------------------------------------------------

    def status_written(self, body: Object, now: float, operator: int) -> None:
        """Checks a status write that the API server will accept. `now`: by the clock of the operator."""
        metadata, new = body["metadata"], body["status"]
        if "resourceVersion" not in metadata or "uid" not in metadata:
            self._world.fail("a status is written whatever the stored version is")
        live = self._world.api.find(JOB.plural, metadata["name"])
        if live is None or any(live["metadata"][key] != metadata[key] for key in ("uid", "resourceVersion")):
            return
        old, uid = live.get("status", {}), metadata["uid"]
        self.history.written(uid, old, new, operator)
        self._world.detector.status_written(uid, old, new)
        if is_finished(old):
            for kind in (names.COMPLETE, names.FAILED):
                if find_condition(old, kind) != find_condition(new, kind):
                    self._world.fail(f"condition {kind} of a finished job changes")
            if old["completionTime"] != new.get("completionTime"):
                self._world.fail("the completion time changes")
        elif is_finished(new):
            self._ends(live, new, now)
        for name in COUNTERS:
            before, after = ((status.get("restarts") or {}).get(name, 0) for status in (old, new))
            if after < before:
                self._world.fail(f"restarts.{name} falls from {before} to {after}")
            true = sum(self._count(group.restarts, name) for group in self._world.agents.groups if group.job_uid == uid)
            if after > true:
                self._world.fail(f"restarts.{name} is {after}, and there were {true}")
        if new.get("attempt", 0) < old.get("attempt", 0):
            self._world.fail("the attempt falls")

    @staticmethod
    def _count(restarts: dict[str, int], name: str) -> int:
        return restarts["inPlace"] + restarts["pod"] if name == "total" else restarts[name]

    def _ends(self, job: Object, new: Object, now: float) -> None:
        uid = job["metadata"]["uid"]
        if is_true(new, names.COMPLETE) and is_true(new, names.FAILED):
            self._world.fail("the job is Complete and Failed")
        kind = names.COMPLETE if is_true(new, names.COMPLETE) else names.FAILED
        reason = (find_condition(new, kind) or {})["reason"]
        self.ended[uid] = reason
        if self._world.faults.active and self._world.rng.random() < 0.3:
            self._world.after(self._world.rng.uniform(2.0, 30.0), self._world.faults.take_name)
        self._world.log_line(f"the job is {kind}: {reason}")
        outcomes = [g.outcome for g in self._world.agents.groups if g.job_uid == uid and g.outcome is not None]
        if reason in BY_CLOCK:
            field = "activeDeadlineSeconds" if reason == Reason.DEADLINE_EXCEEDED else "startupDeadlineSeconds"
            limit, began = job["spec"].get(field), unix(new.get("startTime"))
            # The operator may have read the spec before a person changed it.
            if limit is None or began is None or began + limit > now + 1.0:
                self._world.fail(f"the job fails by {reason} before its deadline of {limit} s after {began}")
            return
        spent = (new.get("ownEvictions") or {}).get("spent") or ()
        if reason == Reason.RESTART_BUDGET_SPENT and len(spent) > job["spec"]["restart"]["maxRestarts"]:
            return  # the operator counts the evictions of a lone pod itself
        wanted = "Succeeded" if kind == names.COMPLETE else "Failed"
        found = [outcome for outcome in outcomes if (outcome["result"], outcome["reason"]) == (wanted, reason)]
        if not found:
            self._world.fail(f"the job ends by {kind} {reason}, and its agents reported {outcomes}")
        if new.get("attempt", 0) < found[-1]["attempt"]:
            self._world.fail("the end of the job is of an attempt that the status does not know")

    def stateful_set_applied(self, served: Object | None) -> None:
        """Checks that a job which is to have no pods gets none. `served`: the job as last confirmed."""
        assert served is not None
        if is_finished(served.get("status", {})) or "deletionTimestamp" in served["metadata"]:
            self._world.fail("a StatefulSet is applied for a job that is finished or deleted")
        if served["spec"]["suspend"]:
            self._world.fail("a StatefulSet is applied for a suspended job")

    def deleted(self, resource: Resource, name: str, uid: str, served: Object | None) -> None:
        """Checks that an object that the operator deletes is the job's own."""
        found = self._world.api.find(resource.plural, name)
        if found is None or found["metadata"]["uid"] != uid or served is None:
            return
        job = served["metadata"]["uid"]
        if resource is STATEFUL_SET and job not in owner_uids(found):
            self._world.fail(f"deletes {name}, which is owned by {owner_uids(found)}")
        overdue = "deletionTimestamp" in found["metadata"]
        if resource is POD and not is_pod_of(found, job) and not overdue:
            self._world.fail(f"deletes pod {name} of another job")
        if resource is JOB and not is_finished(found.get("status", {})):
            self._world.fail("deletes a job that is not finished")

    def force_deleted(self, name: str, uid: str, now: float) -> None:
        """Checks that a pod is removed only after it had the time to terminate."""
        pod = self._world.api.find(POD.plural, name)
        if pod is not None and pod["metadata"]["uid"] == uid:
            end = unix(pod["metadata"].get("deletionTimestamp"))
            if end is None or now < end + OVERDUE_SECONDS - 1.0:
                self._world.fail(f"removes pod {name}, which may still terminate")

    def is_untouched(self, foreign: Object) -> None:
        """Checks that an object which is not the job's is as its owner wrote it."""
        live = self._world.api.find(STATEFUL_SET.plural, foreign["metadata"]["name"])
        if live is None or live["spec"] != foreign["spec"] or live["metadata"].get("ownerReferences"):
            self._world.fail("a StatefulSet of somebody else was changed or deleted")

    # --- at the end -----------------------------------------------------------------------------------------------

    def is_settled(self) -> bool:
        """Returns whether the world is as the user's last wish demands."""
        api, job = self._world.api, self._world.job
        uid = "" if job is None else job["metadata"]["uid"]
        # People who orphan a job's pods keep them.
        owned = [pod for pod in api.of(POD.plural) if owner_uids(pod) or is_pod_of(pod, uid)]
        foreign = None if self._world.foreign is None else self._world.foreign["metadata"]["uid"]
        pods = [*(each for each in api.of(STATEFUL_SET.plural) if each["metadata"]["uid"] != foreign), *owned]
        if job is None:
            return not self._world.is_recreating and not pods and not api.of(SERVICE.plural) and not api.of("secrets")
        status = job.get("status", {})
        if is_finished(status):
            kept = job["spec"]["cleanPodPolicy"] == "None"
            return "ttlSecondsAfterFinished" not in job["spec"] and (kept or not pods)
        return bool(job["spec"]["suspend"]) and is_true(status, names.SUSPENDED) and not pods

    def end(self) -> None:
        """Checks what the whole run left."""
        for event in self._world.api.of(EVENT.plural):
            if event["reason"] in FINAL and "series" in event:
                self._world.fail(f"the end of the job was announced twice: {event['note']}")
        job = self._world.job
        if job is not None and is_true(job.get("status", {}), names.COMPLETE):
            restarts = job["status"].get("restarts", {})
            groups = [g for g in self._world.agents.groups if g.job_uid == job["metadata"]["uid"]]
            if len(groups) == 1 and restarts.get("pod", 0) != groups[0].restarts["pod"]:
                self._world.fail(f"the status has {restarts}, and the agents counted {groups[0].restarts}")
