"""The overlap of communication and computation that `dtj report` reads from traces of torch.profiler."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dtj.errors import InputError
from dtj.report import trace_files
from dtj.report.trace_files import read_traces, traces_near
from dtj.report.traces import TraceOverlap, trace_overlap

NAME = "trace-rank3-10-12.json"
SECOND = 1e6
"""Times in a trace are microseconds."""


def event(kind: str, name: str, at: float, until: float) -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "ts": at * SECOND, "dur": (until - at) * SECOND}


ON_GPU = [
    event("cpu_op", "aten::mm", 0.0, 10.0),  # the host queues kernels, which is no computation
    event("kernel", "sm90_xmma_gemm_bf16", 0.0, 4.0),
    event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 3.0, 6.0),
    event("kernel", "void at::native::vectorized_elementwise_kernel", 3.5, 5.0),
    event("kernel", "rcclGenericKernel", 8.0, 9.0),
    event("user_annotation", "nccl:all_reduce", 0.0, 9.0),
]
ON_CPU = [
    event("cpu_op", "aten::linear", 0.0, 4.0),
    event("cpu_op", "aten::addmm", 1.0, 4.0),
    event("cpu_op", "c10d::allreduce_", 4.0, 4.1),
    event("user_annotation", "gloo:all_reduce", 3.0, 6.0),
    event("user_annotation", "gloo:all_reduce", 5.0, 8.0),
    event("cpu_op", "aten::add_", 9.0, 10.0),
]
NOISE = [{"ph": "M", "name": "process_name"}, {"ph": "X", "cat": "kernel", "ts": "x"}, {"ph": "s"}, None, 7]


@pytest.mark.parametrize(
    ("events", "computation", "communication", "overlapped"),
    [(ON_GPU, 5.0, 4.0, 2.0), (ON_CPU, 5.0, 5.0, 1.0), ([*ON_GPU, *NOISE], 5.0, 4.0, 2.0)],
)
def test_overlap_is_the_time_in_which_both_run(
    events: list[Any], computation: float, communication: float, overlapped: float
) -> None:
    found = trace_overlap({"traceEvents": events}, NAME)
    assert found is not None
    assert (found.rank, found.first, found.last, found.steps, found.span) == (3, 10, 12, 2, 10.0)
    assert found.computation == pytest.approx(computation)
    assert found.communication == pytest.approx(communication)
    assert found.overlapped == pytest.approx(overlapped)
    assert found.exposed == pytest.approx(communication - overlapped)


@pytest.mark.parametrize("document", [None, [], {}, {"traceEvents": 1}, {"traceEvents": NOISE}])
def test_file_of_another_form_shows_nothing(document: object) -> None:
    assert trace_overlap(document, NAME) is None


def test_file_of_another_name_shows_nothing() -> None:
    assert trace_overlap({"traceEvents": ON_CPU}, "rank3.pt.trace.json") is None


def write(path: Path, events: object = ON_CPU) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def ranks(found: list[TraceOverlap]) -> list[tuple[int, int]]:
    return [(one.rank, one.first) for one in found]


def test_newest_window_of_each_rank_is_read_from_the_job_s_folder_and_folders_below(tmp_path: Path) -> None:
    write(tmp_path / "trace-rank0-10-15.json")
    write(tmp_path / "traces/trace-rank1-10-15.json")
    write(tmp_path / "traces/trace-rank0-90-95.json")
    write(tmp_path / "step-00000010/trace-rank2-10-15.json")
    (tmp_path / "traces/trace-rank5-10-15.json").write_text('{"traceEvents": [')
    assert ranks(traces_near(tmp_path, 0.0)) == [(0, 90), (1, 10)]


def test_traces_of_an_earlier_run_in_the_same_folder_are_not_read(tmp_path: Path) -> None:
    old, new = write(tmp_path / "trace-rank0-10-15.json"), write(tmp_path / "trace-rank1-10-15.json")
    os.utime(old, (100, 100))
    os.utime(new, (300, 300))
    assert ranks(traces_near(tmp_path, 200.0)) == [(1, 10)]
    assert ranks(read_traces(tmp_path)) == [(0, 10), (1, 10)]


def test_folder_without_traces_is_an_error_if_it_is_named_and_nothing_otherwise(tmp_path: Path) -> None:
    assert traces_near(tmp_path / "none", 0.0) == traces_near(tmp_path, 0.0) == []
    with pytest.raises(InputError, match="no folder"):
        read_traces(tmp_path / "none")
    with pytest.raises(InputError, match=r"holds no trace-rank\*\.json"):
        read_traces(tmp_path)


def test_trace_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "trace-rank0-10-15.json")
    monkeypatch.setattr(trace_files, "MAX_BYTES", 100)
    assert traces_near(tmp_path, 0.0) == []
