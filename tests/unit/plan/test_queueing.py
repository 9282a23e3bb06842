"""A job in a queue of Kueue: when it has pods, when it keeps its quota, and when it gives the quota back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dtj_core.plan.model import Object
from tests.unit.plan.objects import NOW, SETTINGS, UID, World, agent, condition, job, outcome, pod, true_conditions

KUEUE = replace(SETTINGS, kueue=True)
CHECKPOINT = {"volume": {"claimName": "shared"}}
FLAVOR = {
    "spec": {
        "nodeLabels": {"pool": "reserved"},
        "tolerations": [{"key": "reserved", "operator": "Exists", "effect": "NoSchedule"}],
    }
}


class Kueue(World):
    """One job, and the conditions that Kueue sets on its Workload."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(job(**({"queueName": "team-a", "checkpoint": CHECKPOINT} | spec)), KUEUE)

    @property
    def workload(self) -> Object:
        assert self.observed.workload is not None
        return self.observed.workload

    def sets(self, *, admission: Object | None = None, active: bool = True, **conditions: Any) -> None:
        """Sets conditions of the Workload: whether they are true, or the reason and message of a true one."""
        status = dict(self.workload.get("status") or {})
        known = {each["type"]: each for each in status.get("conditions") or []}
        for kind, value in conditions.items():
            reason, message = value if isinstance(value, tuple) else ("Test", "as the test wants")
            known[kind] = {"type": kind, "status": str(bool(value)), "reason": reason, "message": message}
        status |= {"conditions": list(known.values())} | ({"admission": admission} if admission else {})
        spec = self.workload["spec"] | {"active": active}
        self.see(workload={**self.workload, "spec": spec, "status": status})

    def admit(self) -> None:
        assigned = {"name": "main", "count": 3, "flavors": {"cpu": "reserved", "memory": "reserved"}}
        self.see(flavors={"reserved": FLAVOR})
        admission = {"clusterQueue": "all", "podSetAssignments": [assigned]}
        self.sets(QuotaReserved=True, Admitted=True, Evicted=False, admission=admission)

    def run(self, now: float, **report: Any) -> None:
        """Brings the job to training."""
        self.settle(now)
        self.admit()
        self.settle(now + 1)
        self.start_pods(now + 2, **report)

    def start_pods(self, now: float, **report: Any) -> None:
        self.see(pods=tuple(pod(o, owner=self.set_uid) for o in range(3)), agent=agent(**report))
        self.settle(now)
        assert true_conditions(self.status) == ["Running"]
        self.writes.clear()
        self.events.clear()

    def evict(self, reason: str = "Preempted") -> None:
        self.sets(Evicted=(reason, "a job of higher priority needs the quota"))


def test_job_waits_without_pods_until_it_is_admitted() -> None:
    world = Kueue()
    world.settle(NOW)
    assert world.writes == ["apply Workload", "status", "event Queued"]
    assert world.workload["spec"]["queueName"] == "team-a"
    [pods] = world.workload["spec"]["podSets"]
    assert (pods["name"], pods["count"]) == ("main", 3)
    assert (world.status["phase"], world.status["reason"]) == ("Pending", "Queued")
    assert "startTime" not in world.status, "the clock of the deadlines stands still"
    world.sets(QuotaReserved=False)
    world.settle(NOW + 5000)
    assert "as the test wants" in condition(world.status, "Running")["message"], "Kueue's own words are shown"
    assert world.observed.stateful_set is None


def test_admitted_pods_get_the_labels_and_tolerations_of_their_flavor() -> None:
    world = Kueue(nodeSelector={"disk": "ssd"})
    world.settle(NOW)
    world.admit()
    world.settle(NOW + 1)
    assert world.observed.stateful_set is not None
    template = world.observed.stateful_set["spec"]["template"]["spec"]
    assert template["nodeSelector"] == {"disk": "ssd", "pool": "reserved"}
    assert FLAVOR["spec"]["tolerations"][0] in template["tolerations"]
    assert "kueue.x-k8s.io/queue-name" not in world.observed.stateful_set["metadata"]["labels"]


def test_admitted_job_waits_for_a_flavor_that_is_gone() -> None:
    world = Kueue()
    world.settle(NOW)
    world.admit()
    world.see(flavors={})
    wanted = world.reconcile(NOW + 60)
    assert wanted is not None
    assert wanted.requeue_after == 30, "nobody watches flavors"
    assert "ResourceFlavor reserved" in condition(world.status, "Running")["message"]
    assert world.observed.stateful_set is None
    world.see(flavors={"reserved": FLAVOR})
    world.settle(NOW + 90)
    assert world.observed.stateful_set is not None


def test_repair_keeps_the_placement_although_the_flavor_has_changed() -> None:
    world = Kueue()
    world.run(NOW)
    edited = world.observed.stateful_set
    assert edited is not None
    world.see(stateful_set={**edited, "spec": edited["spec"] | {"replicas": 1}}, flavors={})
    world.settle(NOW + 60)
    assert "apply StatefulSet" in world.writes
    assert world.observed.stateful_set is not None
    assert world.observed.stateful_set["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "reserved"}


def test_topology_that_kueue_assigns_gates_every_pod_and_orders_ranks() -> None:
    required = {"kueue.x-k8s.io/podset-required-topology": "rack"}
    world = Kueue(template={"metadata": {"annotations": required}})
    world.settle(NOW)
    request = world.workload["spec"]["podSets"][0]["topologyRequest"]
    assert request == {"required": "rack", "podIndexLabel": "apps.kubernetes.io/pod-index"}
    assigned = {"name": "main", "topologyAssignment": {"levels": ["rack"], "slices": []}}
    world.sets(QuotaReserved=True, Admitted=True, admission={"podSetAssignments": [assigned]})
    world.settle(NOW + 1)
    assert world.observed.stateful_set is not None
    template = world.observed.stateful_set["spec"]["template"]
    assert template["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/topology"}]
    assert template["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "main"
    assert template["metadata"]["annotations"]["kueue.x-k8s.io/workload"] == "digits"


@pytest.mark.parametrize("left", [0, 1, 2])
def test_lost_pods_cost_no_quota(left: int) -> None:
    world = Kueue()
    world.run(NOW)
    world.see(pods=world.observed.pods[:left], agent=agent(phase="Rendezvous", phaseReason="PodLost"))
    world.settle(NOW + 10)
    assert condition(world.status, "Restarting")["status"] == "True"
    assert not [write for write in world.writes if "Workload" in write or write.startswith("delete")]


def test_evicted_job_keeps_its_quota_until_the_last_pod_is_gone() -> None:
    world = Kueue()
    world.run(NOW, attempt=3)
    world.evict()
    world.see(agent=agent(attempt=4))
    world.reconcile(NOW + 50)
    assert world.writes == ["status", "event EvictedByQueue"], "what the agents reported is stored first"
    assert world.status["attempt"] == 4
    world.settle(NOW + 51)
    assert "delete StatefulSet" in world.writes
    assert "patch Workload" not in world.writes, "pods that terminate still use the quota"
    world.see(pods=())
    world.settle(NOW + 60)
    assert world.writes.count("patch Workload") == 1
    status = world.workload["status"]
    assert status["admission"] is None
    assert {c["type"]: c["status"] for c in status["conditions"]} == {
        "QuotaReserved": "False", "Admitted": "False", "Evicted": "True", "Requeued": "True", "PodsReady": "False",
    }  # fmt: skip
    assert (world.status["phase"], world.status["reason"]) == ("Pending", "Queued")
    assert "Preempted" in condition(world.status, "Running")["message"]


def test_readmitted_job_starts_above_its_earlier_attempts() -> None:
    world = Kueue()
    world.run(NOW, attempt=3)
    world.evict()
    world.settle(NOW + 50)
    world.see(pods=())
    world.settle(NOW + 60)
    world.admit()
    world.settle(NOW + 100)
    assert world.observed.stateful_set is not None
    env = world.observed.stateful_set["spec"]["template"]["spec"]["containers"][0]["env"]
    assert next(each["value"] for each in env if each["name"] == "DTJ_ATTEMPT_FLOOR") == "4"
    assert world.status["restarts"]["counted"] == 0, "an eviction costs no budget"
    world.start_pods(NOW + 110, attempt=4)


def test_deactivated_job_names_the_cure() -> None:
    world = Kueue()
    world.run(NOW)
    world.evict("Deactivated")
    world.settle(NOW + 50)
    world.see(pods=())
    world.settle(NOW + 60)
    requeued = next(c for c in world.workload["status"]["conditions"] if c["type"] == "Requeued")
    assert requeued["status"] == "False", "Kueue itself queues it again, or a person does"
    world.sets(active=False)
    world.settle(NOW + 120)
    assert "set spec.active of Workload digits to true" in condition(world.status, "Running")["message"]


def test_group_that_trains_is_reported_ready_once() -> None:
    world = Kueue()
    world.settle(NOW)
    world.admit()
    world.settle(NOW + 1)
    assert "patch Workload" not in world.writes
    world.see(pods=tuple(pod(o, owner=world.set_uid) for o in range(3)), agent=agent())
    world.settle(NOW + 2)
    world.settle(NOW + 200)
    assert world.writes.count("patch Workload") == 1
    assert next(c for c in world.workload["status"]["conditions"] if c["type"] == "PodsReady")["status"] == "True"


def test_suspended_job_gives_its_quota_back_after_its_pods() -> None:
    world = Kueue()
    world.run(NOW)
    assert world.job is not None
    world.job["spec"]["suspend"] = True
    world.settle(NOW + 50)
    assert "delete Workload" not in world.writes
    world.see(pods=())
    world.settle(NOW + 60)
    assert "delete Workload" in world.writes
    assert true_conditions(world.status) == ["Suspended"]
    world.job["spec"]["suspend"] = False
    world.settle(NOW + 70)
    assert (world.status["phase"], world.status["reason"]) == ("Pending", "Queued")


@pytest.mark.parametrize("suspend", [True, False])
def test_job_that_leaves_its_queue_gives_its_quota_back(suspend: bool) -> None:
    world = Kueue()
    world.run(NOW)
    assert world.job is not None
    world.job["spec"]["suspend"] = suspend
    del world.job["spec"]["queueName"]
    world.settle(NOW + 50)
    world.see(pods=())
    world.settle(NOW + 60)
    if not suspend:
        world.see(pods=tuple(pod(o, owner=world.set_uid) for o in range(3)), agent=agent(attempt=2))
        world.settle(NOW + 70)
    assert world.writes.count("delete Workload") == 1
    assert world.observed.workload is None


def test_another_number_of_pods_is_queued_again() -> None:
    world = Kueue(elastic={"minReplicas": 2, "maxReplicas": 8})
    world.run(NOW)
    assert world.job is not None
    world.job["spec"]["replicas"] = 5
    world.settle(NOW + 50)
    world.see(pods=())
    world.settle(NOW + 60)
    assert world.workload["spec"]["podSets"][0]["count"] == 5
    assert "5" in str(world.workload["spec"]["podSets"])
    assert world.observed.stateful_set is None


def test_finished_job_ends_its_workload_after_its_pods() -> None:
    world = Kueue()
    world.run(NOW)
    world.see(agent=agent(phase="Succeeded", outcome=outcome()))
    world.settle(NOW + 50)
    assert true_conditions(world.status) == ["Complete"]
    assert "patch Workload" not in world.writes
    world.see(pods=())
    world.settle(NOW + 60)
    end = next(c for c in world.workload["status"]["conditions"] if c["type"] == "Finished")
    assert (end["status"], end["reason"]) == ("True", "Succeeded")


def test_job_whose_workload_was_deleted_is_queued_again() -> None:
    world = Kueue()
    world.run(NOW)
    world.see(workload=None)
    world.settle(NOW + 50)
    assert "delete StatefulSet" in world.writes
    world.see(pods=())
    world.settle(NOW + 60)
    assert world.writes.count("apply Workload") == 1


def test_job_that_runs_survives_the_removal_of_kueue() -> None:
    world = Kueue()
    world.run(NOW)
    world.see(workload=None, kueue_served=False)
    world.settle(NOW + 50)
    assert not [write for write in world.writes if write.startswith("delete")]


def test_new_job_waits_until_kueue_is_installed() -> None:
    world = Kueue()
    world.see(kueue_served=False)
    wanted = world.reconcile(NOW)
    assert wanted is not None
    assert wanted.requeue_after == 30
    assert "install Kueue" in condition(world.status, "Running")["message"]
    assert "apply Workload" not in world.writes


def test_workload_of_somebody_else_is_left_alone() -> None:
    world = Kueue()
    world.see(workload={"kind": "Workload", "metadata": {"name": "digits", "uid": "x"}, "spec": {}})
    world.settle(NOW)
    assert world.status["reason"] == "ChildConflict"
    assert world.workload["metadata"]["uid"] == "x"


def test_own_workload_without_its_label_is_queued_again() -> None:
    """Somebody took the label off, so no watch shows the Workload any more."""
    world = Kueue()
    world.settle(NOW)
    labels = {"app.kubernetes.io/managed-by": "dtj-operator"}
    old = world.workload["metadata"] | {"labels": labels}
    world.see(workload={**world.workload, "metadata": old})
    world.writes.clear()
    wanted = world.reconcile(NOW + 5)
    assert wanted is not None
    assert wanted.requeue_after == 2, "nothing wakes the job when the Workload is gone"
    assert "delete Workload" in world.writes
    world.settle(NOW + 7)
    assert "apply Workload" in world.writes


def test_workload_of_a_deleted_namesake_is_waited_for() -> None:
    """kubectl delete and kubectl apply of one file: the garbage collector may come later."""
    world = Kueue()
    owner = {"kind": "DistributedTrainingJob", "name": "digits", "uid": "earlier"}
    metadata = {"name": "digits", "uid": "x", "ownerReferences": [owner]}
    world.see(workload={"kind": "Workload", "metadata": metadata, "spec": {}})
    world.settle(NOW)
    assert world.status["reason"] == "Queued"
    assert "deleted job of the same name" in condition(world.status, "Running")["message"]
    world.see(workload=None)
    world.settle(NOW + 2)
    assert "apply Workload" in world.writes


def test_rejected_pod_is_not_queued_again_and_again() -> None:
    world = Kueue()
    world.see(refusal="exceeded quota")
    world.settle(NOW)
    assert "apply Workload" not in world.writes
    assert world.status["reason"] == "ChildRefused"


def test_set_that_kueue_gates_itself_keeps_running_as_it_began() -> None:
    """The operator was restarted with --kueue=true while jobs ran under Kueue's own label."""
    world = Kueue()
    world.settings = SETTINGS
    world.settle(NOW)
    world.settings = KUEUE
    world.see(pods=tuple(pod(o, owner=world.set_uid) for o in range(3)), agent=agent())
    world.settle(NOW + 2)
    assert true_conditions(world.status) == ["Running"]
    assert world.observed.workload is None


def test_job_without_a_queue_has_no_workload() -> None:
    world = World(job(), KUEUE)
    world.settle(NOW)
    assert "apply Workload" not in world.writes
    assert world.observed.stateful_set is not None


def test_workload_holds_nothing_that_kueue_does_not_read() -> None:
    world = Kueue(env=[{"name": "TOKEN", "value": "secret"}], resources={"limits": {"cpu": "2"}})
    world.settle(NOW)
    template = world.workload["spec"]["podSets"][0]["template"]
    trainer = next(each for each in template["spec"]["containers"] if each["name"] == "trainer")
    assert trainer == {"name": "trainer", "image": "trainer:cpu", "resources": {"limits": {"cpu": "2"}}}
    assert "volumes" not in template["spec"]
    assert [owner["uid"] for owner in world.workload["metadata"]["ownerReferences"]] == [UID]
