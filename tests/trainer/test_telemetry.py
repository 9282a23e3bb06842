"""What is told about a run, and that telling it can't end the run."""

from __future__ import annotations

import io
import json
import math
import sys
import threading
from pathlib import Path

import pytest

from dtj_trainer.errors import SinkError
from dtj_trainer.progress import Progress
from dtj_trainer.telemetry.record import Console, JsonLines, Record
from dtj_trainer.telemetry.sinks import Background, Mlflow, TensorBoard
from tests.trainer.ranks import AgentSocket


def record(step: int, loss: float = 0.1 + 0.2) -> Record:
    return Record(step=step, total_steps=10, attempt=1, loss=loss, metrics={"lr": 0.5}, per_rank={"step_seconds": [1.0, 2.0]})


def test_json_lines_keep_every_bit_of_a_loss_and_a_torn_line_of_a_killed_writer_stays_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "metrics.jsonl"
    sink = JsonLines(path)
    sink.write(record(1))
    sink.close()
    with path.open("a") as file:
        file.write('{"step": 2, "lo')
    sink = JsonLines(path)
    sink.write(record(3))
    sink.close()
    first, torn, last = path.read_text().splitlines()
    assert json.loads(first)["loss"] == 0.1 + 0.2
    assert torn == '{"step": 2, "lo'
    assert json.loads(last)["per_rank"] == {"step_seconds": [1.0, 2.0]}


class Screen(io.StringIO):
    """A terminal that remembers."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("out", "expected"), [(io.StringIO(), "step=5 loss=0.30000000000000004 lr=0.5\n"), (Screen(), "\r")])
def test_a_log_gets_lines_and_a_terminal_a_bar(monkeypatch: pytest.MonkeyPatch, out: io.StringIO, expected: str) -> None:
    monkeypatch.setattr(sys, "stdout", out)
    Console().write(record(5))
    assert out.getvalue().startswith(expected)
    assert ("██████████··········" in out.getvalue()) == out.isatty()
    assert "attempt" not in out.getvalue()


def test_tensorboard_gets_every_finite_number(tmp_path: Path) -> None:
    sink = Background("TensorBoard", lambda: TensorBoard(tmp_path))
    for step in range(1, 4):
        sink.write(record(step))
    sink.write(record(4, math.nan))
    sink.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(s.step, round(s.value, 6)) for s in events.Scalars("loss")] == [(1, 0.3), (2, 0.3), (3, 0.3)]
    assert len(events.Scalars("lr")) == 4


def test_mlflow_has_one_run_for_all_attempts_of_a_job(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for step in (1, 2):
        sink = Mlflow(uri, "tests", "digits", {"seed": "0"})
        sink.write(record(step))
        sink.close()
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    assert run.data.params == {"seed": "0"}
    assert [m.step for m in client.get_metric_history(run.info.run_id, "loss")] == [1, 2]


def test_a_sink_that_fails_says_so_at_the_next_record_and_never_blocks() -> None:
    failed = threading.Event()

    def make() -> TensorBoard:
        failed.set()
        raise OSError("no space")

    sink = Background("TensorBoard", make)
    assert failed.wait(5)
    sink._thread.join(5)
    with pytest.raises(SinkError, match="TensorBoard: no space"):
        sink.write(record(1))


def test_a_report_never_blocks_and_what_is_said_once_arrives_when_there_is_room_again(tmp_path: Path) -> None:
    agent = AgentSocket(tmp_path / "agent")
    progress = Progress(agent.path, rank=0, attempt=2, min_interval=0.0)
    progress.event("Warning", "CheckpointTorn", "no agent yet")
    for step in range(1000):
        progress.step(step, 1000, loss=math.inf, metrics={"a": math.nan, "b": 1.0})
    assert progress.dropped == 1000
    with agent:
        progress.step(1000, 1000, now=True)
        progress.close()
    told, step = agent.heard[:2]
    assert told == {"rank": 0, "attempt": 2, "event": {"type": "Warning", "reason": "CheckpointTorn", "message": "no agent yet"}}
    assert step == {"rank": 0, "attempt": 2, "step": 1000, "totalSteps": 1000, "phase": "training"}
