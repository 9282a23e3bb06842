"""Events: one object per event, a bounded number per job.

A failed event never fails a reconcile.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dtj_core.plan.model import Event
from dtj_operator import errors
from dtj_operator.kube.event_recorder import BURST, EventRecorder
from tests.unit.operator.fakes import FakeClient, job

MADE = Event(type="Normal", reason="ChildrenCreated", message="made")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def recorder(client: FakeClient, clock: Clock, dropped: list[int] | None = None) -> EventRecorder:
    count = dropped if dropped is not None else []
    return EventRecorder(client, "pod-1", now=clock, dropped=lambda: count.append(1))  # type: ignore[arg-type]


def test_first_event_is_created_with_all_required_fields() -> None:
    client = FakeClient()
    asyncio.run(recorder(client, Clock()).record(job(), MADE))
    body: Any = client.bodies[0]
    assert client.calls == [("create", "events", f"j.{1_000_000_000:014x}")]
    assert body["eventTime"] == "1970-01-01T00:16:40.000000Z"
    assert (body["type"], body["reason"], body["action"], body["note"]) == (
        "Normal",
        "ChildrenCreated",
        "ChildrenCreated",
        "made",
    )
    assert body["regarding"]["uid"] == "u1"
    assert body["reportingInstance"] == "pod-1"


def test_repetitions_update_the_series_of_the_first_event_once_a_minute() -> None:
    client, clock = FakeClient(), Clock()

    async def main() -> None:
        record = recorder(client, clock).record
        for _ in range(10):
            await record(job(), MADE)
        clock.now += 61
        await record(job(), MADE)

    asyncio.run(main())
    assert [verb for verb, _, _ in client.calls] == ["create", "patch"]
    assert client.calls[0][2] == client.calls[1][2]
    assert client.bodies[1] == {"series": {"count": 11, "lastObservedTime": "1970-01-01T00:17:41.000000Z"}}


@pytest.mark.parametrize("seconds", [0.0, 0.000_001, 1.0, 3600.0])
def test_names_are_in_the_order_of_time_as_kubectl_describe_lists_them(seconds: float) -> None:
    client, clock = FakeClient(), Clock()

    async def main() -> None:
        record = recorder(client, clock).record
        for number in range(12):
            await record(job(), Event(type="Normal", reason="R", message=str(number)))
            clock.now += seconds

    asyncio.run(main())
    named = [name for _, _, name in client.calls]
    assert named == sorted(set(named))


def test_flapping_job_is_rate_limited_and_another_is_not() -> None:
    client, clock, dropped = FakeClient(), Clock(), []

    async def main() -> None:
        record = recorder(client, clock, dropped).record
        for number in range(100):
            await record(job(), Event(type="Warning", reason="PodLost", message=str(number)))
        assert (len(client.calls), len(dropped)) == (BURST, 100 - BURST)
        await record(job(uid="u2"), MADE)
        assert len(client.calls) == BURST + 1
        clock.now += 61
        await record(job(), MADE)
        assert len(client.calls) == BURST + 2, "one more a minute"

    asyncio.run(main())


def test_failed_event_write_raises_nothing_and_the_next_is_tried() -> None:
    client = FakeClient()
    client.refuse["create", "events", f"j.{1_000_000_000:014x}"] = errors.Transient("no answer")

    async def main() -> None:
        record = recorder(client, Clock()).record
        await record(job(), MADE)
        client.refuse.clear()
        await record(job(), MADE)

    asyncio.run(main())
    assert [verb for verb, _, _ in client.calls] == ["create", "create"]


@pytest.mark.parametrize(("message", "length"), [("x" * 5000, 1024), ("\u6b65" * 1000, 341), ("\ud800", 1)])
def test_note_is_cut_at_the_byte_limit_of_the_api(message: str, length: int) -> None:
    client = FakeClient()
    asyncio.run(recorder(client, Clock()).record(job(), Event(type="Normal", reason="R", message=message)))
    assert len(client.bodies[0]["note"]) == length
    assert len(client.bodies[0]["note"].encode()) <= 1024
