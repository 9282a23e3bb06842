"""Pages of counted steps on their way to the coordinator: descriptors, boards, recoveries and goodput."""

from __future__ import annotations

import json
import os
import socket
import struct
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dtj_agent.net.loop import Loop
from dtj_agent.pages import metrics
from dtj_agent.workers.progress_board import ProgressBoard
from dtj_agent.workers.report_socket import ReportSocket
from dtj_contract import names, step_page
from tests.lib.waiting import wait_until
from tests.unit.agent.coordinator_harness import CoordinatorHarness


class Worker:
    """One rank's end: a page, and the reports that carry it."""

    def __init__(self, rank: int, path: str) -> None:
        self.rank, self.path = rank, path
        self.page = os.memfd_create("page")
        self.count(0)

    def count(self, steps: int, last: float = 2.0) -> None:
        os.pwrite(self.page, struct.pack("=8sqdd", step_page.MAGIC, steps, 1.0, last), 0)

    def send(self, attempt: int = 1, *descriptors: int, body: bytes | None = None) -> None:
        report = json.dumps({"rank": self.rank, "attempt": attempt, "optimizerSteps": 0}).encode()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            carried = array("i", descriptors or [self.page])
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, carried)
            out.sendmsg([report if body is None else body], [rights], 0, self.path)


@pytest.fixture
def reports(tmp_path: Path) -> Iterator[ReportSocket]:
    made = ReportSocket(Loop(), str(tmp_path))
    made.begin(1)
    yield made
    made.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def pages() -> set[int]:
    """Returns the descriptors of pages that this process has open."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that listed the folder
            if "memfd:page" in os.readlink(f"/proc/self/fd/{descriptor}"):
                found.add(int(descriptor))
    return found


def test_agent_reads_each_page_as_it_is_now(reports: ReportSocket) -> None:
    first, second = Worker(0, reports.path), Worker(3, reports.path)
    first.send()
    second.send()
    reports.read()
    assert (reports.counts, reports.take()) == ({}, []), "no step, nothing to report"
    first.count(7, last=5.0)
    second.count(9)
    os.close(second.page)  # its worker was killed
    reports.read()
    assert {rank: count.steps for rank, count in reports.counts.items()} == {0: 7, 3: 9}
    assert reports.counts[0].last == 5.0
    (message,) = reports.take()
    assert message["progress"] == {"rank": 0, "stepped": True, "optimizerSteps": 7}
    reports.read()
    assert reports.take() == [], "nothing new"


def test_agent_reads_pages_without_being_reported_to(tmp_path: Path) -> None:
    loop = Loop()
    reports = ReportSocket(loop, str(tmp_path))
    reports.begin(1)
    worker = Worker(0, reports.path)
    worker.send()
    loop.run_once()
    worker.count(5)
    wait_until("the page is read", lambda: (loop.run_once(), reports.counts)[1])
    reports.close()
    loop.later(names.STEP_PAGE_SECONDS, loop.stop)
    loop.run()


def test_all_reports_of_a_pod_with_one_rank_are_of_that_rank(reports: ReportSocket) -> None:
    reports.begin(1, only=1)
    for rank in (3, 2):
        reports.add({"rank": rank, "attempt": 1, "step": rank})
    (message,) = reports.take()
    assert (message["progress"]["rank"], message["progress"]["step"]) == (1, 2)
    assert reports.ranks.vitals(1, 0.0).step == 2


def test_no_descriptor_is_left_open(reports: ReportSocket) -> None:
    worker = Worker(0, reports.path)
    reading, writing = os.pipe()
    before, known = descriptors(), pages()
    worker.send(2)
    worker.send(1, reading)
    worker.send(body=b"no report")
    worker.send(1, *[worker.page] * 9)
    worker.send()
    worker.send()
    reports.read()
    assert descriptors() == before + 1, "one page"
    (received,) = pages() - known
    assert not os.get_inheritable(received), "no later worker gets it"
    reports.begin(2)
    assert descriptors() == before
    for each in (reading, writing):
        os.close(each)


@pytest.mark.parametrize(
    "page",
    [b"", b"x" * 64, step_page.MAGIC, struct.pack("=8sqdd", step_page.MAGIC, -1, 1.0, 2.0),
     struct.pack("=8sqdd", step_page.MAGIC, 2**60, 1.0, 2.0), struct.pack("=8sqdd", step_page.MAGIC, 1, 2.0, 1.0),
     struct.pack("=8sqdd", step_page.MAGIC, 1, float("nan"), float("inf"))],
)  # fmt: skip
def test_invalid_page_counts_nothing(page: bytes) -> None:
    assert step_page.parse(page) is None


def board(*reports: dict[str, Any]) -> ProgressBoard:
    made = ProgressBoard(1)
    for report in reports:
        made.add({"attempt": 1, **report})
    return made


def test_counts_give_no_rank_precedence_over_one_that_reports() -> None:
    made = board({"rank": 1, "step": 30, "loss": 0.5, "phase": "training"}, {"rank": 0, "optimizerSteps": 30})
    assert made.take() == {
        "rank": 1, "attempt": 1, "step": 30, "loss": 0.5, "phase": "training", "stepped": True, "optimizerSteps": 30,
    }  # fmt: skip


def test_steps_counted_while_a_trainer_loads_are_none_of_training() -> None:
    made = board({"rank": 0, "phase": "loading"}, {"rank": 0, "optimizerSteps": 3})
    assert not made.urgent
    assert (made.take() or {})["stepped"] is False


def test_first_counted_step_is_urgent_and_the_second_is_not() -> None:
    made = board({"rank": 2, "optimizerSteps": 1})
    assert (made.urgent, made.rank, made.step) == (True, 2, None)
    made.take()
    made.add({"rank": 2, "attempt": 1, "optimizerSteps": 2})
    assert not made.urgent


def counted(harness: CoordinatorHarness, steps: int, attempt: int = 1, **more: Any) -> None:
    progress = {"rank": 0, "optimizerSteps": steps, "stepped": True, **more}
    harness.receive(0, "progress", attempt=attempt, progress=progress)


def broken(harness: CoordinatorHarness) -> None:
    harness.fail(0)
    harness.stopped(0)


def test_recovery_of_a_silent_script_ends_with_its_first_counted_step() -> None:
    harness = CoordinatorHarness(1).running()
    counted(harness, 50)
    broken(harness)
    harness.time += 7
    counted(harness, 1, attempt=2)
    (recovery,) = harness.coordinator.history.recoveries
    assert recovery["seconds"]["load"] == pytest.approx(7)
    assert recovery["seconds"]["firstStep"] == 0.0
    assert (recovery["lastStep"], recovery["resumedStep"], recovery["lostSteps"]) == (None, None, None)
    progress = harness.coordinator.history.progress
    assert progress is not None
    assert (progress["step"], progress["optimizerSteps"]) == (None, 1)


def test_counted_steps_show_that_a_script_works_and_are_no_step_of_the_job() -> None:
    harness = CoordinatorHarness(1).running()
    history = harness.coordinator.history
    assert not history.progressed
    counted(harness, 50)
    assert history.progressed
    assert (history.furthest, harness.coordinator.goodput.last_step) == (0, None)
    counted(harness, 51, step=700)
    counted(harness, 52)
    broken(harness)
    counted(harness, 1, attempt=2)
    assert (history.progress or {})["step"] == 700, "a count never replaces a reported step"


def test_training_of_a_silent_script_counts_up_to_its_last_saved_file() -> None:
    harness = CoordinatorHarness(1).running()
    tracker = harness.coordinator.goodput

    def saved(ago: float) -> None:
        tracker.file_saved(harness.now().wall - ago, harness.now())

    saved(1000)
    counted(harness, 1)
    harness.time += 20
    saved(5)
    assert harness.coordinator.history.productive == pytest.approx(15)
    saved(5)
    harness.time += 10
    broken(harness)
    assert tracker.productive_seconds(harness.now()) == pytest.approx(15)
    harness.time += 3
    saved(3 + 2)
    assert tracker.productive_seconds(harness.now()) == pytest.approx(28), "seen after the attempt had broken"
    counted(harness, 1, attempt=2)
    harness.time += 4
    harness.receive(0, "done", attempt=2, port=1)
    assert (harness.coordinator.outcome or {})["productiveSeconds"] == pytest.approx(32)


def test_steps_are_unknown_only_after_a_while_without_any() -> None:
    harness = CoordinatorHarness(1).running()
    tracker = harness.coordinator.goodput
    assert not tracker.steps_unknown(harness.now())
    harness.time += names.EARLY_SECONDS + 1
    assert tracker.steps_unknown(harness.now())
    counted(harness, 1)
    assert not tracker.steps_unknown(harness.now())


def test_metrics_show_counted_steps_beside_reported_ones() -> None:
    page: Any = {
        "job": "j", "attempt": 1, "phase": "Running", "worldSize": 1, "members": [], "recoveries": [],
        "restarts": {"inPlace": 0, "pod": 0, "counted": 0}, "productiveSeconds": 0.0, "checkpoint": None,
        "stragglers": [],
        "progress": {"step": None, "optimizerSteps": 61},
    }  # fmt: skip
    text = metrics.render(page).decode()
    assert 'dtj_optimizer_steps{job="j"} 61.0' in text
    assert "dtj_step{" not in text
