"""Edits of children are undone once, with the group's agent image; missing pods wake their
controller.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, get_args

import pytest

from dtj_contract import names
from dtj_core.plan import children, plan
from dtj_core.plan.job import Job
from dtj_core.plan.model import AgentDelivery, Apply, Nudge, Observed
from dtj_core.plan.times import rfc3339
from tests.unit.plan.objects import NOW, SETTINGS, agent, condition, job, pod, pods, service, started

NEWER = replace(SETTINGS, agent_image="dtj-operator:newer")


def look(child: Any, now: float = NOW + 5, *, settings: Any = SETTINGS, live: Any = None, **seen: Any) -> Any:
    stored, _ = started()
    first = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent())
    running = plan(stored, first, NOW, settings)
    seen = {"pods": pods(), "agent": agent()} | seen
    return plan(job(running.status), Observed(stateful_set=child, service=live or service(), **seen), now, settings)


def made(generation: int = 1, **annotations: str) -> Any:
    """Returns the StatefulSet as the API server would."""
    child = started()[1]
    metadata = child["metadata"] | {"generation": generation, "creationTimestamp": rfc3339(NOW)}
    metadata["annotations"] = metadata["annotations"] | annotations
    return child | {"metadata": metadata, "status": {"observedGeneration": generation}}


def applied(wanted: Any, kind: str) -> Any:
    """Returns the applied body of that kind; None if there is none."""
    return next((a.body for a in wanted.actions if isinstance(a, Apply) and a.body["kind"] == kind), None)


def agent_image(body: Any) -> str:
    installer = body["spec"]["template"]["spec"]["initContainers"][0]
    assert installer["name"] == names.INIT_CONTAINER
    return str(installer["image"])


EDITS: dict[str, Any] = {
    "another selector": {"selector": {"app": "x"}},
    "a narrower selector": {"selector": {names.LABEL_JOB: "digits", "app": "x"}},
    "not before they are ready": {"publishNotReadyAddresses": False},
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_edited_service_is_repaired(edit: Any) -> None:
    live = service()
    live["spec"] = live["spec"] | edit
    body = applied(look(made(), live=live), "Service")
    assert body["spec"]["selector"] == {names.LABEL_JOB: "digits"}
    assert body["spec"]["publishNotReadyAddresses"] is True


def test_service_with_server_defaults_is_left_alone() -> None:
    live = service()
    live["spec"] = live["spec"] | {"type": "ClusterIP", "ipFamilies": ["IPv4"], "sessionAffinity": "None"}
    assert look(made(), live=live).actions == ()


@pytest.mark.parametrize(
    ("generation", "repaired"),
    [(1, None), (2, "1"), (1, "1"), (7, "6")],
    ids=["new", "undone", "nothing to undo", "long after"],
)
def test_unedited_statefulset_is_left_alone(generation: int, repaired: str | None) -> None:
    annotations = {names.ANNOTATION_REPAIRED: repaired} if repaired else {}
    assert look(made(generation, **annotations)).actions == ()


@pytest.mark.parametrize(("generation", "repaired"), [(2, None), (3, "1"), (9, "garbage")])
def test_edited_statefulset_is_applied_again_with_the_undone_generation(generation: int, repaired: str | None) -> None:
    child = made(generation, **({names.ANNOTATION_REPAIRED: repaired} if repaired else {}))
    child["spec"]["template"]["spec"]["containers"][0]["image"] = "edited"
    body = applied(look(child), "StatefulSet")
    assert body["spec"]["template"]["spec"]["containers"][0]["image"] == "trainer:cpu"
    assert body["metadata"]["annotations"][names.ANNOTATION_REPAIRED] == str(generation)
    after = child | {
        "metadata": body["metadata"] | {"uid": "set-uid", "generation": generation + 1},
        "spec": body["spec"],
    }
    assert look(after).actions == (), "once"


@pytest.mark.parametrize("edited", [False, True], ids=["scaled", "its agent's image was edited"])
def test_repair_after_an_upgrade_keeps_the_groups_agent_image(edited: bool) -> None:
    child = made(2)
    child["spec"]["replicas"] = 5
    if edited:
        child["spec"]["template"]["spec"]["initContainers"][0]["image"] = "somebody:else"
    body = applied(look(child, settings=NEWER), "StatefulSet")
    assert body["spec"]["replicas"] == 3
    assert agent_image(body) == "dtj-operator:test"
    assert body["metadata"]["annotations"][names.ANNOTATION_AGENT_IMAGE] == "dtj-operator:test"


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(get_args(AgentDelivery))))
def test_repair_delivers_the_agent_as_the_groups_pods_have_it(before: Any, after: Any) -> None:
    stored, _ = started()
    settings = replace(SETTINGS, agent_delivery=before)
    child = made(2)
    child["spec"] |= {"template": children.stateful_set(Job.from_object(stored), settings, 1)["spec"]["template"]}
    body = applied(look(child, settings=replace(NEWER, agent_delivery=after)), "StatefulSet")
    pod, live = body["spec"]["template"]["spec"], child["spec"]["template"]["spec"]
    assert (pod["volumes"], pod.get("initContainers")) == (live["volumes"], live.get("initContainers"))


def test_repair_without_annotation_keeps_the_live_agent_image() -> None:
    child = made(2)
    del child["metadata"]["annotations"][names.ANNOTATION_AGENT_IMAGE]
    assert agent_image(applied(look(child, settings=NEWER), "StatefulSet")) == "dtj-operator:test"


def test_repair_without_annotation_keeps_the_live_image_of_a_volume() -> None:
    child = made(2)
    settings = replace(SETTINGS, agent_delivery="image-volume")
    child["spec"] |= {"template": children.stateful_set(Job.from_object(started()[0]), settings, 1)["spec"]["template"]}
    del child["metadata"]["annotations"][names.ANNOTATION_AGENT_IMAGE]
    volumes = applied(look(child, settings=NEWER), "StatefulSet")["spec"]["template"]["spec"]["volumes"]
    assert [v["image"]["reference"] for v in volumes if v["name"] == names.VOLUME_AGENT] == ["dtj-operator:test"]


def test_upgrade_alone_repairs_nothing() -> None:
    assert look(made(), settings=NEWER).actions == ()


SHORT = {"pods": pods(2), "agent": None}


@pytest.mark.parametrize(
    ("seconds", "nudged", "times"),
    [(29, None, 0), (31, None, 1), (100, 80, 0), (100, 69, 1), (100_000, None, 1)],
    ids=["just made", "for half a minute", "just woken", "woken half a minute ago", "for a day"],
)
def test_statefulset_with_missing_pods_is_nudged_at_intervals(seconds: float, nudged: float | None, times: int) -> None:
    child = made(**({names.ANNOTATION_NUDGED: rfc3339(NOW + nudged)} if nudged else {}))
    wanted = look(child, NOW + seconds, **SHORT)
    assert wanted.actions == (Nudge(stateful_set=child, time=rfc3339(NOW + seconds)),) * times


@pytest.mark.parametrize(("generation", "seen", "times"), [(1, None, 0), (1, 1, 1), (2, 1, 0), (2, 2, 1)])
def test_statefulset_that_its_controller_has_not_come_to_is_not_nudged(
    generation: int, seen: int | None, times: int
) -> None:
    child = made()
    child["metadata"]["generation"] = generation
    child["status"] = {} if seen is None else {"observedGeneration": seen}
    assert len([each for each in look(child, NOW + 100, **SHORT).actions if isinstance(each, Nudge)]) == times


def test_statefulset_with_all_pods_is_not_nudged() -> None:
    waiting = (pod(0), pod(1), pod(2, phase="Pending"))
    assert look(made(), NOW + 100, pods=waiting, agent=None).actions == ()


def test_rejected_pods_are_reported_with_the_servers_message() -> None:
    refusal = 'pods "digits-dry-run" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2'
    wanted = look(made(), NOW + 100, refusal=refusal, **SHORT)
    assert wanted.actions == ()
    restarting = condition(wanted.status, "Restarting")
    assert restarting["reason"] == "PodLost", "why the group restarts"
    assert refusal in restarting["message"], "and why that lasts"

    stored, child = started()
    wanted = plan(
        stored, Observed(stateful_set=child, service=service(), pods=pods(2), refusal=refusal), NOW + 100, SETTINGS
    )
    running = condition(wanted.status, "Running")
    assert (running["status"], running["reason"]) == ("False", "ChildRefused")
    assert refusal in running["message"]
    assert wanted.requeue_after == SETTINGS.status_poll_seconds
