"""When a job takes its runtime, and what a later change does."""

from __future__ import annotations

from typing import Any

from dtj_contract import names
from dtj_core.plan import plan, runtimes
from dtj_core.plan.model import Apply, Object, Observed, Plan
from dtj_core.plan.operator_message import operator_message
from tests.unit.plan.objects import NOW, SETTINGS, job

REF = {"runtimeRef": {"name": "gpu"}, "image": None}


def gpu(image: str | None = "platform:1", generation: int = 1, **spec: Any) -> Object:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.RUNTIME_KIND,
        "metadata": {"name": "gpu", "uid": "runtime-uid", "generation": generation},
        "spec": {"restart": {"maxRestarts": 4}} | ({"image": image} if image else {}) | spec,
    }


def six_lines(status: Object | None = None, **spec: Any) -> Object:
    made = job(status, **REF | spec)
    del made["spec"]["image"]
    return made


def look(stored: Object, **observed: Any) -> Plan:
    return plan(stored, Observed(**observed), NOW, SETTINGS)


def stateful_set(found: Plan) -> Object | None:
    bodies = [action.body for action in found.actions if isinstance(action, Apply)]
    return next((body for body in bodies if body["kind"] == "StatefulSet"), None)


def waiting(found: Plan) -> tuple[str, str]:
    condition = next(each for each in found.status["conditions"] if each["type"] == "Running")
    return condition["reason"], condition["message"]


def taken(runtime: Object | None = None, **spec: Any) -> Object:
    """Returns a job that has taken its runtime."""
    first = look(six_lines(**spec), runtime=runtime or gpu())
    return six_lines(first.status, **spec)


def test_status_names_the_queue_of_the_job_or_of_its_runtime() -> None:
    """`kubectl get` shows it, and a column has one path."""
    runtime = gpu(queueName="platform")
    assert look(taken(runtime)).status["queueName"] == "platform"
    assert look(taken(runtime, queueName="mine")).status["queueName"] == "mine"
    left = taken(runtime)
    left["status"] = {**look(left).status, "runtime": left["status"]["runtime"] | {"spec": gpu()["spec"]}}
    left["metadata"]["generation"] = 2
    assert "queueName" not in look(left).status


def test_runtime_is_stored_before_any_child_is_created() -> None:
    """Otherwise a crash in between, and a change of the runtime, would replace the pods."""
    first = look(six_lines(), runtime=gpu())
    assert (first.actions, first.requeue_after) == ((), 0)
    assert first.status["runtime"]["spec"] == gpu()["spec"]
    second = stateful_set(look(six_lines(first.status), runtime=gpu("platform:2", 2)))
    assert second is not None
    container = second["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "platform:1", "the stored one, not that of now"
    assert {"name": "DTJ_MAX_RESTARTS", "value": "4"} in container["env"]


def test_changed_runtime_plans_nothing_for_a_job_that_runs() -> None:
    stored = taken()
    created = look(stored, runtime=gpu())
    child = stateful_set(created)
    assert child is not None
    child["metadata"] |= {"uid": "set-uid", "generation": 1}
    stored = six_lines(created.status)
    same, changed = (
        look(stored, stateful_set=child, runtime=runtime) for runtime in (gpu(), gpu("platform:2", 2, backend="gloo"))
    )
    assert changed == same
    assert look(stored, stateful_set=child, runtime=None) == same, "nor does its deletion"


def test_missing_runtime_is_a_condition_with_the_field_and_the_cure() -> None:
    found = look(six_lines())
    assert found.actions == ()
    reason, message = waiting(found)
    assert reason == "RuntimeNotFound"
    assert message.startswith("spec.runtimeRef.name: there is no DistributedTrainingRuntime gpu: create it")
    assert "runtime" not in found.status
    assert [event.reason for event in found.events] == ["RuntimeNotFound"]


def test_runtimes_that_the_operator_may_not_list_are_not_called_missing() -> None:
    reason, message = waiting(look(six_lines(), runtimes_served=False))
    assert reason == "RuntimeNotFound"
    assert "there is no" not in message
    assert "the operator can't list distributedtrainingruntimes: apply crds/" in message


def test_runtime_that_leaves_a_gap_is_a_condition_and_no_failure() -> None:
    found = look(six_lines(), runtime=gpu(image=None))
    reason, message = waiting(found)
    assert reason == "RuntimeIncomplete"
    assert "with DistributedTrainingRuntime gpu: spec.image: no image" in message
    assert "runtime" not in found.status
    assert "runtime" in look(six_lines(found.status), runtime=gpu()).status, "a change of the runtime cures it"


def test_edited_job_that_no_longer_fits_its_runtime_says_so() -> None:
    mounts = [{"name": "v", "mountPath": "/checkpoints"}]
    container = {"name": "trainer", "image": "i", "volumeMounts": mounts}
    stored = taken(gpu(image=None, template={"spec": {"containers": [container]}}))
    edited = six_lines(stored["status"] | {"conditions": []}, checkpoint={"volume": {"claimName": "c"}})
    edited["status"]["conditions"] = [{"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "m"}]
    condition = next(each for each in look(edited).status["conditions"] if each["type"] == "Stalled")
    assert "already mounts a volume at checkpoint.mountPath" in condition["message"]
    assert "DistributedTrainingRuntime gpu" in condition["message"], "nobody looks for another operator"


def test_suspended_job_takes_no_runtime() -> None:
    found = look(six_lines(suspend=True), runtime=gpu())
    assert "runtime" not in found.status
    assert found.status["phase"] == "Suspended"


def test_resumed_job_keeps_its_runtime_unless_its_policy_takes_another() -> None:
    for policy, image in (("Never", "platform:1"), ("OnResume", "platform:2")):
        reference = {"runtimeRef": {"name": "gpu", "updatePolicy": policy}}
        suspended = look(six_lines(taken(**reference)["status"], suspend=True, **reference), runtime=gpu())
        assert ("runtime" in suspended.status) == (policy == "Never")
        resumed = look(six_lines(suspended.status, **reference), runtime=gpu("platform:2", 2))
        if policy == "OnResume":
            resumed = look(six_lines(resumed.status, **reference), runtime=gpu("platform:2", 2))
        child = stateful_set(resumed)
        assert child is not None
        assert child["spec"]["template"]["spec"]["containers"][0]["image"] == image


def test_job_that_was_given_another_runtime_takes_that() -> None:
    other = gpu("other:1") | {"metadata": {"name": "other", "uid": "other-uid"}}
    found = look(six_lines(taken()["status"], runtimeRef={"name": "other"}), runtime=other)
    assert (found.status["runtime"]["name"], found.status["runtime"]["uid"]) == ("other", "other-uid")


def test_finished_job_keeps_the_pods_and_time_that_its_runtime_gives() -> None:
    stored = taken(gpu(ttlSecondsAfterFinished=60))
    assert runtimes.effective(stored)["spec"]["ttlSecondsAfterFinished"] == 60


def test_agents_are_handed_the_budget_of_the_runtime() -> None:
    budget = operator_message(runtimes.effective(taken(restart={"windowSeconds": 60})), (), NOW).budget
    assert budget is not None
    assert (budget.max_restarts, budget.window) == (4, 60)


def test_running_job_without_status_and_runtime_is_left_alone() -> None:
    created = look(taken(), runtime=gpu())
    child = stateful_set(created)
    assert child is not None
    child["metadata"] |= {"uid": "set-uid", "generation": 1}
    lost = look(six_lines({}), stateful_set=child)
    assert lost.actions == ()
    assert waiting(lost)[0] == "PodsPending", "no deletion of its pods is announced"
