"""Cases of specs.py that the generated specs of tests/integration/controlplane/test_conformance.py found."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]

GOOD: dict[str, Object] = {
    "a whole number that is written as a fraction": {"processesPerPod": 2.0},
    "whole numbers in a list, written as fractions": {"restart": {"rules": [{"exitCodes": [3.0], "action": "Fail"}]}},
    "a null in a map of the template": {"template": {"spec": {"nodeSelector": {"gpu": None}, "containers": []}}},
    "a null in a map of the spec": {"nodeSelector": {"gpu": None}},
    "variables, ports and pull secrets that are there twice": {
        "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}],
        "imagePullSecrets": [{"name": "a"}, {"name": "a"}],
        "template": {"spec": {"containers": [{"name": "t", "ports": [{"containerPort": 80}, {"containerPort": 80}]}]}},
    },
}
BAD: dict[str, tuple[Object, str]] = {
    "a module with letters beyond ASCII": ({"entrypoint": {"module": "train\u0301"}}, "spec.entrypoint.module"),
    "an interface with digits beyond ASCII": ({"network": {"interface": "ib\u0663"}}, "spec.network.interface"),
    "an empty image of the trainer container": (
        {"image": None, "template": {"spec": {"containers": [{"name": "trainer", "image": ""}]}}},
        "spec.image",
    ),
    "an unknown field that is null": (
        {"entrypoint": {"module": "train", "newIn2030": None}},
        "spec.entrypoint.newIn2030",
    ),
}
