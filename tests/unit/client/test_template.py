"""A value of the wrong type in a pod template is one clear line with its path.

The error is reported before anything is started.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dtj.errors import InputError
from dtj.local import template
from dtj.main import main
from tests.unit.client.support import job_yaml

CONTAINER = "spec.template.spec.containers[0]"
SLIPS: dict[str, tuple[dict[str, Any], str]] = {
    "env value": ({"env": [{"name": "A", "value": 1}]}, f"{CONTAINER}.env[0].value"),
    "env bool": ({"env": [{"name": "A", "value": True}]}, f"{CONTAINER}.env[0].value"),
    "env map": ({"env": {"A": "1"}}, f"{CONTAINER}.env"),
    "env source": ({"env": [{"name": "A", "valueFrom": "secret"}]}, f"{CONTAINER}.env[0].valueFrom"),
    "env field": ({"env": [{"name": "A", "valueFrom": {"fieldRef": "x"}}]}, f"{CONTAINER}.env[0].valueFrom.fieldRef"),
    "command": ({"command": "python train.py"}, f"{CONTAINER}.command"),
    "args": ({"args": ["--epochs", 30]}, f"{CONTAINER}.args[1]"),
    "mounts": ({"volumeMounts": ["data"]}, f"{CONTAINER}.volumeMounts[0]"),
    "sub path": (
        {"volumeMounts": [{"name": "d", "mountPath": "/d", "subPath": 3}]},
        f"{CONTAINER}.volumeMounts[0].subPath",
    ),
    "resources": ({"resources": 8}, f"{CONTAINER}.resources"),
    "limits": ({"resources": {"limits": ["nvidia.com/gpu"]}}, f"{CONTAINER}.resources.limits"),
    "env from": ({"envFrom": "x"}, f"{CONTAINER}.envFrom"),
}
POD_SLIPS: dict[str, tuple[dict[str, Any], str]] = {
    "grace": ({"terminationGracePeriodSeconds": "60"}, "spec.template.spec.terminationGracePeriodSeconds"),
    "security": ({"securityContext": "root"}, "spec.template.spec.securityContext"),
    "volumes": ({"volumes": ["data"]}, "spec.template.spec.volumes[0]"),
    "claim": (
        {"volumes": [{"name": "d", "persistentVolumeClaim": "c"}]},
        "spec.template.spec.volumes[0].persistentVolumeClaim",
    ),
    "tolerations": ({"tolerations": ["gpu"]}, "spec.template.spec.tolerations[0]"),
    "init": ({"initContainers": "x"}, "spec.template.spec.initContainers"),
}


def job_with(pod: dict[str, Any], container: dict[str, Any]) -> str:
    job = yaml.safe_load(job_yaml())
    job["spec"]["template"] = {"spec": {"containers": [{"name": "trainer", **container}], **pod}}
    return yaml.safe_dump(job)


@pytest.mark.parametrize(
    ("pod", "container", "path"),
    [({}, given_, path) for given_, path in SLIPS.values()]
    + [(given_, {}, path) for given_, path in POD_SLIPS.values()],
    ids=[*SLIPS, *POD_SLIPS],
)
def test_value_of_the_wrong_type_exits_with_2_and_its_path(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pod: dict[str, Any],
    container: dict[str, Any],
    path: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(job_with(pod, container))
    assert main(["run", "job.yaml"]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("dtj: job.yaml: ")
    assert path in err
    assert out == ""
    assert [found.name for found in tmp_path.iterdir()] == ["job.yaml"], "no file was created"


def test_number_instead_of_a_string_is_shown_quoted() -> None:
    slip = {"spec": {"containers": [{"env": [{"name": "A", "value": 1}, {"name": "B", "value": True}]}]}}
    with pytest.raises(InputError) as caught:
        template.check(slip, "job.yaml")
    assert str(caught.value).splitlines() == [
        f'job.yaml: {CONTAINER}.env[0].value: must be a string, not 1; quote it: "1"',
        f'job.yaml: {CONTAINER}.env[1].value: must be a string, not true; quote it: "true"',
    ]


def test_valid_template_is_accepted() -> None:
    template.check(None, "job.yaml")
    pod = {
        "containers": [
            {
                "name": "trainer",
                "env": [
                    {"name": "A", "value": ""},
                    {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                ],
                "resources": {"limits": {"cpu": 2, "memory": "4Gi", "nvidia.com/gpu": "1"}},
                "volumeMounts": [{"name": "d", "mountPath": "/d"}],
                "livenessProbe": {"exec": {"command": ["true"]}},
            }
        ],
        "volumes": [
            {"name": "d", "emptyDir": {}},
            {"name": "e", "emptyDir": None},
            {"name": "f", "csi": {"driver": "x"}},
        ],
        "terminationGracePeriodSeconds": 60,
    }
    template.check({"metadata": {"labels": {"team": "a"}}, "spec": pod}, "job.yaml")


GARBAGE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["name", "value", "valueFrom", "fieldRef", "env", "command", "volumeMounts", "mountPath", "resources"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(container=GARBAGE, pod=GARBAGE)
def test_garbage_never_causes_a_traceback(container: object, pod: object) -> None:
    for spec in ({"containers": [container]}, pod):
        with contextlib.suppress(InputError):
            template.check({"spec": spec}, "job.yaml")
