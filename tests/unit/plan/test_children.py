"""Children follow the contract, and repairs restore them."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from dtj_contract import names
from dtj_core.plan import plan
from dtj_core.plan.agent_keys import agent_key
from dtj_core.plan.job import Job
from dtj_core.plan.model import Apply, Observed
from dtj_core.plan.times import rfc3339
from tests.unit.plan.objects import (
    NOW,
    SETTINGS,
    UID,
    agent,
    applied,
    condition,
    container,
    ended,
    job,
    pod,
    pods,
    service,
    started,
    template,
)


def test_every_child_has_the_owner_and_the_labels_of_its_job() -> None:
    for child in applied().values():
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (UID, True, False)
        assert child["metadata"]["labels"] == {
            "app.kubernetes.io/managed-by": "dtj-operator",
            "training.dtj.dev/job-name": "digits",
        }
        assert child["metadata"]["namespace"] == "team"


def test_agent_key_is_64_hex_digits_and_stable() -> None:
    key = base64.b64decode(applied()["Secret"]["data"]["key"]).decode()
    assert len(key) == 64
    assert int(key, 16)
    assert key == agent_key(UID, SETTINGS) != agent_key("other", SETTINGS)


def test_service_is_headless_and_publishes_unready_pods() -> None:
    spec = applied()["Service"]["spec"]
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    assert spec["ports"] == [{"name": "dtj-agent", "port": 29400, "protocol": "TCP"}]


def test_statefulset_starts_all_pods_at_once_and_never_rolls_them() -> None:
    spec = applied()["StatefulSet"]["spec"]
    assert (spec["replicas"], spec["serviceName"]) == (3, "digits")
    assert (spec["podManagementPolicy"], spec["updateStrategy"]) == ("Parallel", {"type": "OnDelete"})
    assert spec["template"]["metadata"]["labels"].items() >= spec["selector"]["matchLabels"].items()


def test_spec_hash_covers_what_shapes_pods_and_ignores_defaults() -> None:
    def digest(**spec: Any) -> str:
        return Job.from_object(job(**spec)).spec_hash

    assert digest() == digest(backend="auto", restart={"maxRestarts": 10, "windowSeconds": 3600}, suspend=True)
    budget = {"maxRestarts": 1, "windowSeconds": 9, "maxRestartsWithoutProgress": 3}
    assert digest() == digest(restart=budget), "the agents take a new budget while they run"
    assert digest() == digest(ttlSecondsAfterFinished=1, cleanPodPolicy="None", activeDeadlineSeconds=9)
    changed = [
        {"replicas": 2},
        {"image": "b"},
        {"backend": "gloo"},
        {"processesPerPod": 2},
        {"restart": {"rules": [{"exitCodes": [1], "action": "Fail"}]}},
    ]
    changed.append({"restart": {"stopGraceSeconds": 30}})
    changed += [{"hangDetection": {"policy": "Off"}}, {"progressDeadlineSeconds": 600}]
    assert (
        len({digest(), *(digest(**change) for change in changed), digest(**template({"future": 1}))})
        == len(changed) + 2
    )


def test_operator_upgrade_applies_nothing_to_a_running_job() -> None:
    from dataclasses import replace

    stored, child = started()
    newer = replace(SETTINGS, agent_image="dtj-operator:newer")
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent())
    assert plan(stored, seen, NOW, newer).actions == ()


@pytest.mark.parametrize("missing", ["service", "replicas", "annotation"])
def test_deleted_or_changed_child_is_repaired(missing: str) -> None:
    stored, child = started()
    seen = service() if missing != "service" else None
    if missing == "replicas":
        child = {**child, "spec": child["spec"] | {"replicas": 1}}
    if missing == "annotation":
        child = {**child, "metadata": child["metadata"] | {"annotations": {}}}
    actions = plan(
        stored, Observed(stateful_set=child, service=seen, pods=pods(), agent=agent()), NOW, SETTINGS
    ).actions
    kinds = [action.body["kind"] for action in actions if isinstance(action, Apply)]
    assert kinds == (["Service"] if missing == "service" else ["StatefulSet"])


def test_deleted_statefulset_is_recreated_above_earlier_attempts() -> None:
    stored, child = started()
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent(attempt=4))
    running = plan(stored, seen, NOW, SETTINGS)
    again = plan(job(running.status), Observed(service=service()), NOW + 1, SETTINGS)
    made = [a.body for a in again.actions if isinstance(a, Apply) and a.body["kind"] == "StatefulSet"]
    floor = [
        e["value"]
        for e in made[0]["spec"]["template"]["spec"]["containers"][0]["env"]
        if e["name"] == "DTJ_ATTEMPT_FLOOR"
    ]
    assert floor == ["5"]
    assert condition(again.status, "Restarting")["status"] == "True"
    assert condition(again.status, "Restarting")["reason"] == "PodDeleted"


def test_foreign_object_with_the_name_of_a_child_is_not_touched() -> None:
    foreign = {"kind": "Service", "metadata": {"name": "digits", "uid": "x"}, "spec": {}}
    blocked = plan(job(), Observed(service=foreign), NOW, SETTINGS)
    assert blocked.actions == ()
    assert condition(blocked.status, "Running")["reason"] == "ChildConflict"
    assert (
        "Service digits already exists and does not belong to this job: delete it"
        in condition(blocked.status, "Running")["message"]
    )
    assert [event.reason for event in blocked.events] == ["ChildConflict"]
    assert blocked.requeue_after == 30
    again = plan(job(blocked.status), Observed(service=foreign), NOW + 30, SETTINGS)
    assert (again.events, again.status) == ((), blocked.status)
    assert plan(job(blocked.status), Observed(), NOW + 60, SETTINGS).actions


def test_new_job_waits_for_children_of_a_deleted_job_of_its_name() -> None:
    waiting = plan(job(), Observed(service=service(owner_uid="earlier")), NOW, SETTINGS)
    assert waiting.actions == ()
    assert "deleted job of the same name" in condition(waiting.status, "Running")["message"]
    assert waiting.requeue_after == 2


WAITING = {
    "mounting for 10 s": ({}, 10, True),
    "mounting for a moment": ({}, 9, False),
    "its init container waits": (
        {"initContainerStatuses": [container("dtj-agent", waiting={"reason": "PodInitializing"})]},
        70,
        True,
    ),
    "asked for a while ago": ({}, 60, False),
    "asked for a minute ago": ({}, 79, True),
    "its init container runs": ({"initContainerStatuses": [container("dtj-agent")]}, 60, False),
    "it runs": ({"containerStatuses": [container()]}, 60, False),
    "it ran, and is started again": (
        {"containerStatuses": [container(last=ended("", 1), waiting={"reason": "x"})]},
        60,
        False,
    ),
}


@pytest.mark.parametrize(("status", "seconds", "made"), WAITING.values(), ids=WAITING)
def test_missing_secret_is_recreated_if_a_pod_waits_for_its_volumes(status: Any, seconds: int, made: bool) -> None:
    """The key is the same, so the running pods can use it."""
    stored, child = started()
    waiting = pod(1, **({"phase": "Pending"} | status))
    waiting["metadata"]["creationTimestamp"] = rfc3339(NOW)
    seen = Observed(stateful_set=child, service=service(), pods=(pod(0), waiting, pod(2)), agent=agent())
    actions = plan(stored, seen, NOW + seconds, SETTINGS).actions
    assert [(a.body["kind"], a.if_missing) for a in actions if isinstance(a, Apply)] == (
        [("Secret", True)] if made else []
    )
    if made:
        assert isinstance(actions[0], Apply)
        made_first, made_again = applied()["Secret"], actions[0].body
        assert made_again["data"] == made_first["data"]
        (owner,) = made_again["metadata"]["ownerReferences"]
        assert owner["uid"] == UID


def test_pod_that_pulls_its_image_needs_no_check_of_its_volumes() -> None:
    stored, child = started()
    sandbox = {"type": "PodReadyToStartContainers", "status": "True"}
    pulling = pod(
        1, phase="Pending", conditions=[sandbox], containerStatuses=[container(waiting={"reason": "ContainerCreating"})]
    )
    pulling["metadata"]["creationTimestamp"] = rfc3339(NOW)
    seen = Observed(stateful_set=child, service=service(), pods=(pod(0), pulling, pod(2)), agent=agent())
    assert plan(stored, seen, NOW + 10, SETTINGS).actions == ()


def test_starting_pod_is_checked_again_and_unscheduled_pod_is_not() -> None:
    stored, child = started()
    waiting = pod(0, phase="Pending")
    waiting["metadata"]["creationTimestamp"] = rfc3339(NOW)
    others = tuple(pod(o, phase="Pending") | {"spec": {}} for o in (1, 2))
    seen = Observed(stateful_set=child, service=service(), pods=(waiting, *others))
    assert plan(stored, seen, NOW + 1, SETTINGS).requeue_after == 10
    waiting["spec"] = {}
    wanted = plan(stored, seen, NOW + 100, SETTINGS)
    assert (wanted.actions, wanted.requeue_after) == ((), None)


def test_secret_of_a_running_job_keeps_its_key_when_the_master_key_is_replaced() -> None:
    """A new pod with another key could not join the agents that run."""
    from dataclasses import replace

    stored, child = started()
    waiting = pod(1, phase="Pending")
    waiting["metadata"]["creationTimestamp"] = rfc3339(NOW)
    seen = Observed(stateful_set=child, service=service(), pods=(pod(0), waiting, pod(2)), agent=agent())
    rotated = replace(SETTINGS, master_key=b"new", previous_master_key=SETTINGS.master_key)
    made = [a.body for a in plan(stored, seen, NOW + 10, rotated).actions if isinstance(a, Apply)]
    assert [body["data"] for body in made] == [applied()["Secret"]["data"]]
    fresh = {a.body["kind"]: a.body for a in plan(job(), Observed(), NOW, rotated).actions if isinstance(a, Apply)}
    assert fresh["Secret"]["data"] != applied()["Secret"]["data"], "a new run takes the new key"
    assert (
        len({each["StatefulSet"]["metadata"]["annotations"][names.ANNOTATION_AGENT_KEY] for each in (fresh, applied())})
        == 2
    )
