"""The check of the pod security standard finds each violation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.chart.pss import violations

GOOD: dict[str, Any] = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "volumes": [{"name": "tmp", "emptyDir": {}}],
    "containers": [
        {
            "name": "c",
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        }
    ],
}

BAD: dict[str, Callable[[dict[str, Any]], object]] = {
    "hostNetwork": lambda s: s.update(hostNetwork=True),
    "hostPID": lambda s: s.update(hostPID=True),
    "volume x: hostPath": lambda s: s["volumes"].append({"name": "x", "hostPath": {"path": "/"}}),
    "container c: runAsNonRoot": lambda s: s["securityContext"].pop("runAsNonRoot"),
    "container c: runAsUser 0": lambda s: s["securityContext"].update(runAsUser=0),
    "container c: seccompProfile": lambda s: s["securityContext"].pop("seccompProfile"),
    "container c: allowPrivilegeEscalation": lambda s: s["containers"][0]["securityContext"].pop(
        "allowPrivilegeEscalation"
    ),
    "container c: privileged": lambda s: s["containers"][0]["securityContext"].update(privileged=True),
    "container c: capabilities not dropped": lambda s: s["containers"][0]["securityContext"].pop("capabilities"),
    "container c: capabilities added": lambda s: s["containers"][0]["securityContext"]["capabilities"].update(
        add=["SYS_ADMIN"]
    ),
    "container c: hostPort": lambda s: s["containers"][0].update(ports=[{"containerPort": 1, "hostPort": 1}]),
    "container c: readOnlyRootFilesystem": lambda s: s["containers"][0]["securityContext"].pop(
        "readOnlyRootFilesystem"
    ),
}


def test_restricted_pod_has_no_violation() -> None:
    assert violations(GOOD) == []


@pytest.mark.parametrize("name", BAD)
def test_each_violation_is_named(name: str) -> None:
    spec = copy.deepcopy(GOOD)
    BAD[name](spec)
    assert violations(spec) == [name]


def test_init_container_is_checked_like_a_container() -> None:
    assert violations(GOOD | {"initContainers": [{"name": "i"}]}) != []
