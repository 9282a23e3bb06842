"""`dtj report` reads what the Trainer writes: a slow part that was put into a training is the verdict."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dtj.report.content import Content, content, run
from dtj.report.evidence import evidence
from dtj.report.page import page
from dtj.report.samples import metrics_samples
from dtj.report.trace_files import traces_near
from dtj.report.verdict import Bound
from dtj_contract import names
from dtj_core.plan.times import rfc3339
from tests.unit.trainer.ranks import finished
from tests.unit.trainer.ranks_report import SLOW, STEPS, train


def report(folder: Path, cause: str) -> Content:
    """Trains on two ranks with this cause of slowness, and returns the content of its report."""
    began = time.time()
    finished(2, train, folder, str(folder / "c"), cause)
    job = {"metadata": {"name": "net"}, "spec": {"replicas": 2}, "status": {"startTime": rfc3339(began)}}
    given = metrics_samples((folder / "c" / names.METRICS_FILE).read_text())
    return content(run(evidence(job, 1, given), traces_near(folder / "c", began)))


@pytest.mark.torch
def test_rank_that_computes_longer_is_the_slow_rank(tmp_path: Path) -> None:
    made = report(tmp_path, "rank")
    found, mean = made.run.verdict, made.run.mean
    assert found.bound == Bound.SLOW_RANK
    assert found.shown_by.startswith("rank 1 (pod net-1) takes")
    assert found.shown_by.endswith("differs most in computing")
    assert mean is not None
    assert (mean.ranks, mean.step > SLOW) == (2, True)
    headings = {section.heading for section in made.sections}
    assert {"Throughput", "Step breakdown", "Ranks", "Overlap", "Memory"} <= headings
    assert "of its memory in use" in page(made)


@pytest.mark.torch
def test_loader_that_takes_longer_than_the_step_is_the_bound(tmp_path: Path) -> None:
    made = report(tmp_path, "data")
    assert made.run.verdict.bound == Bound.DATA
    mean = made.run.mean
    assert mean is not None
    assert mean.steps == STEPS - 4, "all records but the first"
    # The traces of the profiler are found below the metrics, and hold gloo's collectives.
    assert [(one.rank, one.first, one.last) for one in made.run.traces] == [(0, 8, 12), (1, 8, 12)]
    for one in made.run.traces:
        assert 0 < one.communication < one.span
        assert 0 < one.computation < one.span
        assert one.span > 4 * 2 * SLOW, "four steps, in each of which a rank reads two samples"
