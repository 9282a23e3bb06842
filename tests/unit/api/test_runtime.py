"""The merge of a runtime with a job, and what a runtime may hold."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_core.api import InvalidRuntime, runtime, violations
from dtj_core.api.v1alpha1 import Spec

Object = dict[str, Any]
REF = {"runtimeRef": {"name": "gpu"}}


def pod(spec: Object | None = None, **container: Any) -> Object:
    return {"template": {"spec": {"containers": [{"name": "trainer", **container}], **(spec or {})}}}


# name: (runtime, job, what is merged)
MERGED: dict[str, tuple[Object, Object, Object]] = {
    "a field of the runtime": ({"image": "a"}, {}, {"image": "a"}),
    "a field of the job": ({"image": "a"}, {"image": "b"}, {"image": "b"}),
    "maps by key": (
        {"resources": {"limits": {"nvidia.com/gpu": 8}}, "nodeSelector": {"pool": "a", "zone": "x"}},
        {"resources": {"limits": {"memory": "1Gi"}}, "nodeSelector": {"pool": "b"}},
        {
            "resources": {"limits": {"nvidia.com/gpu": 8, "memory": "1Gi"}},
            "nodeSelector": {"pool": "b", "zone": "x"},
        },
    ),
    "env by name, with whole entries": (
        {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}, {"name": "B", "value": "1"}]},
        {"env": [{"name": "A", "value": "2"}, {"name": "C", "value": "3"}]},
        {"env": [{"name": "A", "value": "2"}, {"name": "B", "value": "1"}, {"name": "C", "value": "3"}]},
    ),
    "env in the order in which one refers to another": (
        {"env": [{"name": "ROOT", "value": "/data"}, {"name": "CACHE", "value": "$(ROOT)/cache"}]},
        {"env": [{"name": "ROOT", "value": "/mine"}]},
        {"env": [{"name": "ROOT", "value": "/mine"}, {"name": "CACHE", "value": "$(ROOT)/cache"}]},
    ),
    "other lists are replaced": (
        {"tolerations": [{"key": "a"}], "restart": {"rules": [{"action": "Fail", "exitCodes": [1]}]}},
        {"tolerations": [{"key": "b"}], "restart": {"rules": []}},
        {"tolerations": [{"key": "b"}], "restart": {"rules": []}},
    ),
    "one kind of volume": (
        {"checkpoint": {"volume": {"claimName": "shared"}, "keep": 7}},
        {"checkpoint": {"volume": {"hostPath": {"path": "/x"}}, "everySteps": 5}},
        {"checkpoint": {"volume": {"hostPath": {"path": "/x"}}, "keep": 7, "everySteps": 5}},
    ),
    "a shorthand over the template of the runtime": (
        pod({"nodeSelector": {"a": "b"}}, image="a", env=[{"name": "A", "value": "1"}]),
        {"image": "b", "env": [{"name": "B", "value": "2"}], "nodeSelector": {"c": "d"}},
        {
            "image": "b",
            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
            "nodeSelector": {"a": "b", "c": "d"},
            **pod(),
        },
    ),
    "a template over the shorthand of the runtime": (
        {"image": "a", "network": {"interface": "ib0", "hostNetwork": True}},
        pod({"hostNetwork": False}, image="b"),
        {"image": "b", "network": {"interface": "ib0", "hostNetwork": False}, **pod()},
    ),
    "containers by name, and the one that trains by its role": (
        {
            "template": {
                "metadata": {"labels": {"team": "a"}},
                "spec": {"containers": [{"name": "main", "securityContext": {"runAsUser": 1}, "workingDir": "/a"}]},
            }
        },
        pod(workingDir="/b"),
        {
            "template": {
                "metadata": {"labels": {"team": "a"}},
                "spec": {"containers": [{"name": "trainer", "securityContext": {"runAsUser": 1}, "workingDir": "/b"}]},
            }
        },
    ),
    "sidecars and volumes of both": (
        {
            "template": {
                "spec": {
                    "containers": [{"name": "trainer"}, {"name": "log", "image": "l:1"}],
                    "volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {}}],
                }
            }
        },
        {
            "template": {
                "spec": {
                    "containers": [{"name": "trainer"}, {"name": "log", "image": "l:2"}, {"name": "x", "image": "x"}],
                    "volumes": [{"name": "b", "configMap": {"name": "c"}}],
                }
            }
        },
        {
            "template": {
                "spec": {
                    "containers": [{"name": "trainer"}, {"name": "log", "image": "l:2"}, {"name": "x", "image": "x"}],
                    "volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "configMap": {"name": "c"}}],
                }
            }
        },
    ),
    "an entrypoint over a command": (
        pod(command=["a"], args=["b"], image="i"),
        {"entrypoint": {"module": "m"}},
        {"entrypoint": {"module": "m"}, **pod(image="i")},
    ),
    "a number of ranks over a resource": ({"processesFrom": "cpu"}, {"processesPerPod": 2}, {"processesPerPod": 2}),
    "a field that only a job has": ({"replicas": 9, "image": "a"}, {"replicas": 2}, {"replicas": 2, "image": "a"}),
}


@pytest.mark.parametrize("case", MERGED)
def test_job_and_runtime_are_merged(case: str) -> None:
    given, job, merged = MERGED[case]
    before = repr((given, job))
    assert runtime.merge(given, job | REF) == merged
    assert repr((given, job)) == before, "neither is changed"


def test_job_without_an_image_is_valid_only_with_a_runtime() -> None:
    base = {"apiVersion": "training.dtj.dev/v1alpha1", "kind": "DistributedTrainingJob", "metadata": {"name": "j"}}
    spec = {"entrypoint": {"module": "m"}, "checkpoint": {"everySteps": 5}}
    assert violations(base | {"spec": spec | REF}) == ()
    assert [each.path for each in violations(base | {"spec": spec})] == ["spec.image", "spec.checkpoint.volume"]


def test_runtime_is_checked_as_the_api_server_would() -> None:
    runtime.validate({"spec": {}})
    runtime.validate({"spec": {"image": "a", "checkpoint": {"keep": 3}}})
    for spec, path in (
        ({"replicas": 2}, "spec.replicas"),
        ({"image": "a", **pod(image="b")}, "spec.image"),
        ({"restart": {"maxRestart": 3}}, "spec.restart.maxRestart"),
    ):
        with pytest.raises(InvalidRuntime) as error:
            runtime.validate({"spec": spec})
        assert [violation.path for violation in error.value.violations] == [path]


def test_every_field_of_a_runtime_is_one_of_the_job_without_a_default_in_the_crd() -> None:
    fields = {info.alias: info for info in Spec.model_fields.values()}
    assert set(runtime.FIELDS) <= fields.keys()
    with_default = {name for name in runtime.FIELDS if fields[name].default is not None}
    assert with_default == {path for path in runtime.DEFAULTED if "." not in path}
