"""Pods whose user and group the cluster chooses, as OpenShift's restricted-v2 requires."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dtj_core.plan import children
from dtj_core.plan.job import Job
from tests.integration.chart import pss, scc
from tests.unit.plan.objects import SETTINGS, job

CLUSTER = replace(SETTINGS, pod_user="cluster")


def pod_spec(settings: Any, **spec: Any) -> Any:
    return children.stateful_set(Job.from_object(job(**spec)), settings, 1)["spec"]["template"]["spec"]


def template(**security: Any) -> Any:
    return {"spec": {"securityContext": security, "containers": [{"name": "trainer"}]}}


def test_pods_of_a_job_without_a_user_are_admitted() -> None:
    claim = {"volume": {"claimName": "c"}}
    assert scc.violations(pod_spec(SETTINGS, checkpoint=claim)), "by default they have our user"
    spec = pod_spec(CLUSTER, checkpoint=claim)
    assert scc.violations(spec) == []
    assert pss.violations(spec) == []


def test_user_and_group_of_the_template_are_kept() -> None:
    spec = pod_spec(CLUSTER, template=template(runAsUser=1_000_650_001, runAsGroup=7, fsGroup=8))
    assert spec["securityContext"].items() >= {"runAsUser": 1_000_650_001, "runAsGroup": 7, "fsGroup": 8}.items()


@pytest.mark.parametrize("settings", [SETTINGS, CLUSTER], ids=["fixed", "cluster"])
def test_user_unknown_to_the_image_has_a_home(settings: Any) -> None:
    env = {entry["name"]: entry.get("value") for entry in pod_spec(settings)["containers"][0]["env"]}
    assert (env["HOME"], env["USER"]) == ("/tmp", "trainer")
