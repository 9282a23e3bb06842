"""The watches: which events wake a job, how kopf is set up, and how it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import kopf
import pytest
from kopf._cogs.aiokits.aiotoggles import ToggleSet
from kopf._cogs.clients.watching import streaming_block

from dtj_contract import names
from dtj_operator.watches import Backoffs, WatchState, ignore_unclosed_watches, kopf_settings
from tests.unit.operator.fakes import job


def child(kind: str = "Pod", **status: Any) -> Any:
    metadata = {"namespace": "ns", "name": "j-0", "uid": "p0", "generation": 1, "labels": {names.LABEL_JOB: "j"}}
    return {"kind": kind, "metadata": metadata, "spec": {}, "status": status}


def woken(tell: Callable[[WatchState], None]) -> list[tuple[str, str]]:
    keys: list[tuple[str, str]] = []
    tell(WatchState(keys.append, lambda _: None))
    return keys


def test_status_write_wakes_no_job_and_a_spec_change_does() -> None:
    def tell(watches: WatchState) -> None:
        watches.on_job_event(None, job())
        watches.on_job_event("MODIFIED", job({"phase": "Running"}, resourceVersion="2", managedFields=[1]))
        watches.on_job_event("MODIFIED", job(generation=2))
        watches.on_job_event("MODIFIED", job(generation=2, deletionTimestamp="now"))
        watches.on_job_event("DELETED", job(generation=2, deletionTimestamp="now"))

    assert woken(tell) == [("ns", "j")] * 4


def test_recreated_job_after_a_lost_deletion_event_is_observed() -> None:
    def tell(watches: WatchState) -> None:
        watches.on_job_event("ADDED", job())
        watches.on_job_event("ADDED", job(uid="u2"))

    assert woken(tell) == [("ns", "j")] * 2


def test_pod_event_wakes_its_job_only_for_fields_that_a_reconcile_reads() -> None:
    def tell(watches: WatchState) -> None:
        ready = {"type": "Ready", "status": "False", "reason": "x"}
        watches.on_child_event("pods", "ADDED", child(phase="Pending", conditions=[ready | {"lastProbeTime": "1"}]))
        watches.on_child_event("pods", "MODIFIED", child(phase="Pending", conditions=[ready | {"lastProbeTime": "2"}]))
        watches.on_child_event("pods", "MODIFIED", child(phase="Running", conditions=[ready]))
        watches.on_child_event("pods", "DELETED", child(phase="Running", conditions=[ready]))
        watches.on_child_event(
            "pods", "ADDED", {"metadata": {"namespace": "ns", "name": "x", "uid": "x"}}
        )  # without an owner

    assert woken(tell) == [("ns", "j")] * 3


def test_relist_drops_lost_jobs_and_names_unobserved_ones() -> None:
    watches = WatchState(lambda _: None, lambda _: None)
    watches.on_job_event("ADDED", job())
    watches.on_job_event("ADDED", job(name="k"))
    assert watches.unobserved([job(), job(name="k")]) == set()
    missed = watches.unobserved([job(generation=2), job(name="new")])
    assert {key for key, _ in missed} == {("ns", "j"), ("ns", "new")}
    watches.keep_only([job()])
    assert {key for key, _ in watches.unobserved([job(), job(name="k")])} == {("ns", "k")}


def test_kopf_settings_disable_events_and_scanning_and_back_off_endlessly() -> None:
    used = kopf_settings()
    assert not used.posting.enabled
    assert used.scanning.disabled
    tries = Backoffs()
    for _ in range(2):  # iterated again at the next outage
        again = iter(tries)
        assert [next(again) for _ in range(8)] == [1, 2, 4, 8, 15, 30, 30, 30]


class InnerFirst(list[Any]):
    """The generators that a loop closes at its end, the youngest first.

    The loop's own set has them in any order.
    """

    def add(self, generator: Any) -> None:
        self.insert(0, generator)

    discard = list.remove


def end_inside_a_kopf_watch(caplog: pytest.LogCaptureFixture, handler: Any) -> list[str]:
    """Cancels kopf's watcher while it handles an event, so that the loop has to close its generators."""
    caplog.clear()

    async def watched() -> AsyncIterator[int]:
        paused = ToggleSet(any)
        async with streaming_block(
            resource=kopf.Resource(names.GROUP, names.VERSION, names.PLURAL), namespace=None, operator_paused=paused
        ):
            yield 1

    async def main() -> AsyncIterator[int]:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(handler)
        loop._asyncgens = InnerFirst()  # type: ignore[attr-defined]
        stream = watched()
        await anext(stream)
        return stream  # alive until the loop is closed

    kept = asyncio.run(main())
    del kept
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_unclosed_kopf_watch_is_no_error_and_other_errors_are(caplog: pytest.LogCaptureFixture) -> None:
    errors_logged = end_inside_a_kopf_watch(caplog, None)
    assert errors_logged, "kopf still leaves its watch open"
    assert all("asynchronous generator" in line for line in errors_logged)
    assert not end_inside_a_kopf_watch(caplog, ignore_unclosed_watches)
    loop = asyncio.new_event_loop()
    ignore_unclosed_watches(loop, {"message": "a task failed"})
    loop.close()
    assert caplog.messages[-1] == "a task failed"
