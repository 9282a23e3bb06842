"""Items that a template has twice reach the API server once, as Kubernetes would take them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.plan.objects import applied, template


def pod_spec(**spec: Any) -> Any:
    return applied(**spec)["StatefulSet"]["spec"]["template"]["spec"]


def variables(env: list[Any]) -> list[Any]:
    """Returns the user's variables as the pod gets them."""
    return [(e["name"], e.get("value")) for e in pod_spec(env=env)["containers"][0]["env"] if len(e["name"]) == 1]


def env(*pairs: tuple[str, str]) -> list[Any]:
    return [{"name": name, "value": value} for name, value in pairs]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([("A", "1"), ("B", "2")], [("A", "1"), ("B", "2")]),
        ([("A", "1"), ("B", "2"), ("A", "3")], [("B", "2"), ("A", "3")]),
        ([("A", "1"), ("A", "2"), ("A", "3")], [("A", "3")]),
        ([("A", "1"), ("A", "2"), ("B", "$(A)")], [("A", "2"), ("B", "$(A)")]),
    ],
)
def test_last_one_of_two_variables_counts(given: list[tuple[str, str]], kept: list[tuple[str, str]]) -> None:
    assert variables(env(*given)) == kept


@pytest.mark.parametrize("given", [[("A", "/x"), ("A", "$(A):/y")], [("A", "1"), ("B", "$(A)"), ("A", "2")]])
def test_variable_that_another_one_refers_to_is_left_for_the_api_server_to_reject(given: list[tuple[str, str]]) -> None:
    assert variables(env(*given)) == given


def test_ports_and_pull_secrets_are_there_once() -> None:
    ports = [{"containerPort": 80}, {"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "UDP"}]
    spec = pod_spec(imagePullSecrets=[{"name": "a"}, {"name": "b"}, {"name": "a"}], **template(ports=ports))
    assert spec["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]
    assert [port for port in spec["containers"][0]["ports"] if port["containerPort"] == 80] == ports[1:]


def test_variables_of_other_containers_are_there_once_too() -> None:
    twice = env(("A", "1"), ("A", "2"))
    containers = [{"name": "trainer"}, {"name": "x", "image": "x", "env": twice}]
    init = [{"name": "i", "image": "i", "env": twice}]
    spec = pod_spec(template={"spec": {"containers": containers, "initContainers": init}})
    assert [each["env"] for each in (spec["containers"][1], spec["initContainers"][-1])] == [env(("A", "2"))] * 2
