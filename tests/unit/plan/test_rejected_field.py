"""A rejection of a child names the field that the user wrote, not the one that the operator made of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dtj_core.plan import plan
from dtj_core.plan.job import Job
from dtj_core.plan.model import Observed
from dtj_core.plan.rejected_field import explain
from tests.unit.plan.objects import NOW, SETTINGS, applied, condition, job, template

SET = 'StatefulSet.apps "digits" is invalid: spec.template.spec.'
POD = 'Pod "digits-dry-run" is invalid: spec.'
QUANTITY = (
    'StatefulSet in version "v1" cannot be handled as a StatefulSet: quantities must match the regular expression '
    "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
VOLUMES = {"volumes": [{"name": "data", "emptyDir": {"sizeLimit": "much"}}]}
CHECKPOINT = {"checkpoint": {"volume": {"claimName": "c"}}}
SIDECAR = {"containers": [{"name": "trainer"}, {"name": "logs", "image": "l", "resources": {"limits": {"cpu": "x"}}}]}
APPLY = "failed to create typed patch object (ns/digits; apps/v1, Kind=StatefulSet): .spec.template.spec."
UNKNOWN = ": field not declared in schema"
BIG = {"resources": {"limits": {"cpu": "big", "memory": "1Gi"}}}
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("the image", {}, f"{SET}containers[0].image: Required value", "spec.image"),
    ("the template's image", {"image": None, **template(image="x")}, f"{POD}containers[0].image: Invalid value", ""),
    (
        "resources of the shorthand",
        {"resources": {"requests": {"cpu": "1"}}},
        f"{SET}containers[0].resources.requests[cpu]: Invalid value",
        "spec.resources.requests[cpu]",
    ),
    ("a shorthand of the pod", {"tolerations": [{}]}, f"{SET}tolerations[0].key: Required", "spec.tolerations[0]"),
    (
        "the network",
        {"network": {"dnsPolicy": "None"}},
        f"{POD}dnsPolicy: Invalid value",
        "spec.network.dnsPolicy",
    ),
    (
        "an init container",
        template({"initContainers": [{"name": "i"}]}),
        f"{POD}initContainers[1].image: Required value",
        "spec.template.spec.initContainers[0].image",
    ),
    ("our init container", {}, f"{POD}initContainers[0].image: Required value", ""),
    ("the checkpoint's volume", CHECKPOINT, f"{POD}volumes[9].persistentVolumeClaim", "spec.checkpoint.volume"),
    ("a volume of the template", template(VOLUMES), f"{POD}volumes[0].name: Required value", ".spec.volumes[0].name"),
    ("an unknown field", {"tolerations": [{}]}, f"{APPLY}tolerations[0].kye{UNKNOWN}", "spec.tolerations[0].kye"),
    (
        "an unknown field of a variable",
        {"env": [{"name": "A"}]},
        f'{APPLY}containers[name="trainer"].env[name="A"].vlue{UNKNOWN}',
        'spec.env[name="A"].vlue',
    ),
    (
        "an unknown field of a sidecar",
        {"template": {"spec": SIDECAR}},
        f'{APPLY}containers[name="logs"].imge{UNKNOWN}',
        "spec.template.spec.containers[1].imge",
    ),
    (
        "an unknown field of an init container",
        template({"initContainers": [{"name": "i"}]}),
        f'{APPLY}initContainers[name="i"].imge{UNKNOWN}',
        "spec.template.spec.initContainers[0].imge",
    ),
    (
        "an unknown field of our init container",
        {},
        f'{APPLY}initContainers[name="dtj-agent"].imge{UNKNOWN}',
        "",
    ),
    (
        "an unknown volume",
        CHECKPOINT | template(VOLUMES),
        f'{APPLY}volumes[name="dtj-checkpoint"].nfss{UNKNOWN}',
        "spec.checkpoint.volume",
    ),
    (
        "an unknown field of a volume",
        CHECKPOINT | template(VOLUMES),
        f'{APPLY}volumes[name="data"].emptyDri{UNKNOWN}',
        "spec.template.spec.volumes[0].emptyDri",
    ),
    ("a quantity", BIG, QUANTITY, "spec.resources.limits.cpu ('big'"),
    ("a size limit", template(VOLUMES), QUANTITY, "spec.volumes[0].emptyDir.sizeLimit ('much'"),
    ("a quantity of a sidecar", {"template": {"spec": SIDECAR}}, QUANTITY, "containers[1].resources.limits.cpu ('x'"),
    (
        "a priority class",
        {"priorityClassName": "high"},
        'pods "digits-dry-run" is forbidden: no PriorityClass with name high was found',
        "spec.priorityClassName",
    ),
    (
        "a service account",
        template({"serviceAccountName": "x"}),
        'pods "digits-dry-run" is forbidden: error looking up service account team/x: serviceaccount "x" not found',
        "spec.template.spec.serviceAccountName",
    ),
    ("a quota", {}, 'pods "digits-dry-run" is forbidden: exceeded quota: q, requested: pods=1', ""),
]


@pytest.mark.parametrize(("case", "spec", "message", "field"), CASES, ids=[row[0] for row in CASES])
def test_rejection_names_the_field_of_the_job(case: str, spec: dict[str, Any], message: str, field: str) -> None:
    explained = explain(message, Job.from_object(job(**spec)), SETTINGS)
    assert explained is not None
    assert explained.startswith(message)
    before, _, named = explained.partition("; in the job: ")
    assert (before, field in named) == (message, True)
    if not field and case != "the template's image":
        assert named == "", "what the operator itself adds is no field of the job"


def test_init_container_has_its_own_index_where_the_operator_adds_none() -> None:
    settings = replace(SETTINGS, agent_delivery="image-volume")
    of_user = Job.from_object(job(**template({"initContainers": [{"name": "i"}]})))
    explained = explain(f"{POD}initContainers[0].image: Required value", of_user, settings)
    assert str(explained).endswith("; in the job: spec.template.spec.initContainers[0].image")


@pytest.mark.parametrize("spec", [{"env": [{"name": "A"}, {"name": ""}]}, template(env=[{"name": "A"}, {"name": ""}])])
def test_variable_has_the_index_that_the_user_gave_it(spec: dict[str, Any]) -> None:
    container = applied(**spec)["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]
    place = next(index for index, entry in enumerate(container["env"]) if entry["name"] == "")
    explained = explain(f"{SET}containers[0].env[{place}].name: Required value", Job.from_object(job(**spec)), SETTINGS)
    prefix = "spec" if "env" in spec else "spec.template.spec.containers[0]"
    assert str(explained).endswith(f"; in the job: {prefix}.env[1].name")


def test_variable_of_the_agent_is_no_field_of_the_job() -> None:
    message = f"{SET}containers[0].env[0].name: Required value"
    assert explain(message, Job.from_object(job()), SETTINGS) == message


@pytest.mark.parametrize("kind", ["rejection", "refusal"])
def test_condition_names_the_field_of_a_refused_child(kind: str) -> None:
    body = job(**BIG)
    seen = Observed(rejection=QUANTITY) if kind == "rejection" else Observed(refusal=QUANTITY)
    status = plan(body, seen, NOW, SETTINGS).status
    message = condition(status, "Failed" if kind == "rejection" else "Running")["message"]
    assert "spec.resources.limits.cpu ('big' is no quantity)" in message
