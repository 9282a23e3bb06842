"""A StatefulSet whose pods are missing.

If the pods would be rejected, the server's message is reported. Otherwise an annotation wakes the
StatefulSet controller.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dtj_contract import names
from dtj_core.plan.model import Nudge, Plan
from dtj_operator import errors
from dtj_operator.kube.executor import PlanExecutor
from dtj_operator.kube.observer import Observer
from dtj_operator.kube.rejections import Rejected
from tests.unit.operator.fakes import FakeCache, FakeClient, FakeListeners, job
from tests.unit.operator.test_executor import Recorded

TIME = "2026-09-21T14:13:20Z"
SET: Any = {
    "kind": "StatefulSet",
    "metadata": {"name": "j", "uid": "set"},
    "spec": {"template": {"metadata": {"labels": {"a": "b"}, "creationTimestamp": None}, "spec": {"containers": []}}},
}
DRY_RUN = ("dry-run", "pods", "j-dry-run")
PATCH = ("patch", "statefulsets", "j")


def carried_out(client: FakeClient) -> None:
    async def main() -> None:
        cache = FakeCache(client)
        observer = Observer(cache, client, FakeListeners())  # type: ignore[arg-type]
        executor = PlanExecutor(client, cache, observer, Recorded(client))  # type: ignore[arg-type]
        await executor.execute(job(), Plan(actions=(Nudge(stateful_set=SET, time=TIME),)))

    asyncio.run(main())


def test_nudge_with_an_admitted_pod_writes_only_an_annotation() -> None:
    client = FakeClient()
    carried_out(client)
    assert client.calls == [DRY_RUN, PATCH]
    assert client.bodies[0]["metadata"] == {"labels": {"a": "b"}, "name": "j-dry-run"}
    assert client.bodies[1] == {"metadata": {"uid": "set", "annotations": {names.ANNOTATION_NUDGED: TIME}}}


@pytest.mark.parametrize(
    "error",
    [
        errors.Forbidden('pods "j-dry-run" is forbidden: exceeded quota: q', status=403),
        errors.Invalid("admission webhook x denied the request", status=400),
        errors.Transient("Internal error occurred: failed calling webhook x", status=500),
    ],
)
def test_nudge_with_a_rejected_pod_is_a_temporary_rejection_with_the_message(error: errors.KubeError) -> None:
    client = FakeClient()
    client.refuse[DRY_RUN] = error
    with pytest.raises(Rejected) as refused:
        carried_out(client)
    assert (str(refused.value), refused.value.permanent) == (error.message, False)
    assert client.calls == [DRY_RUN]


@pytest.mark.parametrize(
    "error",
    [
        errors.Conflict("exists", status=409),
        errors.Invalid("admission webhook x does not support dry run", status=400),
        errors.Forbidden('pods is forbidden: User "u" cannot create resource', status=403),
    ],
)
def test_nudge_with_an_inconclusive_dry_run_still_wakes_the_controller(error: errors.KubeError) -> None:
    client = FakeClient()
    client.refuse[DRY_RUN] = error
    carried_out(client)
    assert client.calls == [DRY_RUN, PATCH]


@pytest.mark.parametrize("error", [errors.ObjectNotFound("no", status=404), errors.Conflict("another uid", status=409)])
def test_nudge_of_a_deleted_set_is_no_error(error: errors.KubeError) -> None:
    client = FakeClient()
    client.refuse[PATCH] = error
    carried_out(client)


def test_nudge_with_a_rejected_annotation_is_a_temporary_rejection() -> None:
    client = FakeClient()
    client.refuse[PATCH] = errors.Forbidden("admission webhook x denied the request: sets are frozen", status=403)
    with pytest.raises(Rejected, match="sets are frozen") as refused:
        carried_out(client)
    assert not refused.value.permanent


@pytest.mark.parametrize("call", [DRY_RUN, PATCH])
def test_nudge_without_a_response_is_no_rejection(call: Any) -> None:
    client = FakeClient()
    client.refuse[call] = errors.Transient("no connection")
    with pytest.raises(errors.Transient):
        carried_out(client)
