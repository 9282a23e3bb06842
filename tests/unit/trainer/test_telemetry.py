"""Records and reports of a run, none of which can end it."""

from __future__ import annotations

import io
import json
import math
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from dtj_trainer.errors import SinkError
from dtj_trainer.examples.gpt import Gpt, GptConfig
from dtj_trainer.telemetry.meter import Rates, summary
from dtj_trainer.telemetry.progress import ProgressReporter
from dtj_trainer.telemetry.record import Console, JsonLines, Record
from dtj_trainer.telemetry.sinks import Background, Mlflow, TensorBoard
from tests.lib.ports import free_port
from tests.lib.waiting import TIMEOUT, wait_until
from tests.unit.agent.harness import running
from tests.unit.trainer.ranks import AgentSocket, finished, ranks
from tests.unit.trainer.ranks_telemetry import BATCH, SLOW, profiled, tracked, windows


def record(step: int, loss: float = 0.1 + 0.2) -> Record:
    return Record(
        step=step, total_steps=10, attempt=1, loss=loss, metrics={"lr": 0.5}, per_rank={"step_seconds": [1.0, 2.0]}
    )


def test_json_lines_keep_every_bit_of_a_loss_and_truncate_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "a" / "metrics.jsonl"
    sink = JsonLines(path)
    sink.write(record(1))
    sink.close()
    with path.open("a") as file:
        file.write('{"step": 2, "lo')
    sink = JsonLines(path)
    sink.write(record(3))
    sink.close()
    first, last = path.read_text().splitlines()
    assert json.loads(first)["loss"] == 0.1 + 0.2
    assert json.loads(last)["per_rank"] == {"step_seconds": [1.0, 2.0]}


class Screen(io.StringIO):
    """A terminal that keeps what is written."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("out", "expected"), [(io.StringIO(), "step=5 loss=0.30000000000000004 lr=0.5\n"), (Screen(), "\r")]
)
def test_console_prints_lines_to_a_log_and_a_bar_to_a_terminal(
    monkeypatch: pytest.MonkeyPatch, out: io.StringIO, expected: str
) -> None:
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
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    for step in (1, 2):
        sink = Mlflow(uri, "tests", "digits", {"seed": "0"})
        sink.write(record(step))
        (run,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
        assert run.info.status == "RUNNING"
        sink.close()
    (run,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params == {"seed": "0"}
    assert [m.step for m in client.get_metric_history(run.info.run_id, "loss")] == [1, 2]


def test_failed_sink_raises_at_the_next_record_and_never_blocks() -> None:
    failed = threading.Event()

    def make() -> TensorBoard:
        failed.set()
        raise OSError("no space")

    sink = Background("TensorBoard", make)
    assert failed.wait(TIMEOUT)
    sink._thread.join(TIMEOUT)
    with pytest.raises(SinkError, match="TensorBoard: no space"):
        sink.write(record(1))


FORKED = """
import os, signal, sys, time
from dtj_trainer.telemetry.sinks import Background, Mlflow

Background("MLflow", lambda: Mlflow("http://nobody", "tests", "digits", {}))
while "mlflow" not in sys.modules:
    time.sleep(0.001)
child = os.fork()
if not child:
    signal.alarm(20)
    import mlflow
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_worker_forked_during_a_sinks_import_can_import_the_same_module(tmp_path: Path) -> None:
    package = tmp_path / "mlflow"
    package.mkdir()
    (package / "__init__.py").write_text("import time\ntime.sleep(1)\ndef MlflowClient(uri):\n    raise OSError(uri)\n")
    (package / "entities.py").write_text("Metric = Param = None\n")
    (package / "exceptions.py").write_text("class MlflowException(Exception):\n    pass\n")
    ended = subprocess.run([sys.executable, "-c", FORKED], env=os.environ | {"PYTHONPATH": str(tmp_path)}, check=False)
    assert ended.returncode == 0, "the worker waits for a lock that its parent's thread holds"


def test_report_never_blocks_and_an_event_arrives_once_the_agent_listens(tmp_path: Path) -> None:
    agent = AgentSocket(tmp_path / "agent")
    progress = ProgressReporter(agent.path, rank=0, attempt=2, min_interval=0.0)
    progress.event("Warning", "CheckpointTorn", "no agent yet")
    for step in range(1000):
        progress.step(step, 1000, loss=math.inf, metrics={"a": math.nan, "b": 1.0})
    assert progress.dropped == 1000
    with agent:
        progress.step(1000, 1000, now=True)
        progress.close()
    event, step = agent.heard[:2]
    assert event == {
        "rank": 0,
        "attempt": 2,
        "event": {"type": "Warning", "reason": "CheckpointTorn", "message": "no agent yet"},
    }
    assert step == {"rank": 0, "attempt": 2, "step": 1000, "totalSteps": 1000, "phase": "training"}


NAN = math.nan
#      loss step data compute checkpoint communication exposed evaluation memory memory_share gpu gpu_memory
FIRST = [1.0, 2.0, 0.1, 1.0, 0.1, 1.0, 0.5, 0.0, 100.0, 0.1, NAN, NAN]
OTHER = [0.5, 2.0, 0.1, 0.5, 0.1, 1.5, 1.2, 0.0, 300.0, 0.3, NAN, NAN]
RATES = Rates(units={"tokens": 128, "images": 2}, flops=1e9, peak=4e9, single_rank=5.0)


def test_rate_window_follows_from_what_the_ranks_measured() -> None:
    window = summary(torch.tensor([FIRST, OTHER], dtype=torch.float64), 16, RATES)
    assert window.loss == 1.5, "each rank's loss is its part of the mean"
    expected = {
        "step_seconds": 2.0, "data_seconds": 0.1, "compute_seconds": 0.75, "checkpoint_seconds": 0.1,
        "communication_seconds": 1.25, "exposed_seconds": 0.85, "communication_share": 0.425, "overlap": 0.32,
        "imbalance": 1.1 / 0.85 - 1, "slowest_rank": 0, "memory_bytes": 300.0, "memory_share": 0.3,
        "tokens_per_second": 128 * 16 / 2.0, "mfu": 1e9 * 16 / 2.0 / 2 / 4e9,
        "images_per_second": 2 * 16 / 2.0, "scaling_efficiency": 16 / 2.0 / (2 * 5.0),
    }  # fmt: skip
    assert window.metrics == pytest.approx(expected)
    assert window.per_rank["exposed_seconds"] == [0.5, 1.2]
    assert window.per_rank["memory_bytes"] == [100.0, 300.0]
    assert not any("gpu" in name for name in window.per_rank)


def test_unmeasured_metrics_are_left_out_and_nothing_is_divided_by_zero() -> None:
    row = [0.0, 0.0, 0.0, 0.0, 0.0, NAN, NAN, 0.0, 1.0, 0.25, 0.5, 8.0]
    window = summary(torch.tensor([row], dtype=torch.float64), 16, RATES)
    parts = {f"{part}_seconds": 0.0 for part in ("step", "data", "compute", "checkpoint")}
    assert window.metrics == parts | {
        "imbalance": 0.0,
        "slowest_rank": 0.0,
        "memory_bytes": 1.0,
        "memory_share": 0.25,
        "gpu_utilization": 0.5,
        "gpu_memory_bytes": 8.0,
    }


def test_gpt_flops_are_those_of_the_palm_paper() -> None:
    """Per token 6 N + 12 L H Q T (Chowdhery et al. 2022, appendix B).

    N are the parameters without position embeddings, H Q is the width.
    """
    width, layers, block, vocabulary = 8, 3, 16, 11
    model = Gpt(GptConfig(vocabulary=vocabulary, block=block, layers=layers, heads=2, width=width))
    matrices = 3 * width * width + width * width + 2 * 4 * width * width
    vectors = 4 * width + 4 * width + width
    parameters = layers * (matrices + vectors) + 2 * width + vocabulary * width
    assert model.flops_per_token() == 6 * parameters + 12 * layers * width * block


@pytest.mark.torch
def test_step_time_excludes_loading_and_validation(tmp_path: Path) -> None:
    finished(1, windows, tmp_path, str(tmp_path / "c"), str(tmp_path / "out.json"))
    for run, first in zip(json.loads((tmp_path / "out.json").read_text()), (3, 9), strict=True):
        assert [r["step"] for r in run] == [first, first + 3]
        for record in run:
            assert record["evaluation_seconds"] > 0.9 * SLOW
            assert record["step_seconds"] < SLOW / 3, "three of these are less than one slow validation"
            assert record["samples_per_second"] > BATCH / (SLOW / 3)


@pytest.mark.torch
def test_profile_has_its_steps_and_ranks_and_a_run_past_its_window_writes_none(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    finished(2, profiled, tmp_path, str(tmp_path / "c"), str(traces), 6)
    assert [p.name for p in traces.iterdir()] == ["trace-rank1-2-5.json"]
    events = json.loads((traces / "trace-rank1-2-5.json").read_text())["traceEvents"]
    assert sum(e["name"].startswith("Optimizer.step") and e["ph"] == "X" for e in events) == 3
    assert any("allreduce" in e["name"] for e in events), "the collectives can be seen"
    finished(2, profiled, tmp_path, str(tmp_path / "c"), str(traces), 8)
    assert len(list(traces.iterdir())) == 1


@pytest.mark.torch
def test_prometheus_reads_the_metrics_of_a_training_from_the_agent(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "tests.unit.trainer.ranks_telemetry"]
    wanted = {"loss", "samples_per_second", "step", "total_steps"}
    named = {f"{part}_seconds" for part in ("step", "data", "compute", "checkpoint", "communication", "exposed")}
    named |= {"tokens_per_second", "mfu", "imbalance", "slowest_rank", "memory_bytes", "lr", "epoch", "validation_half"}
    with running(tmp_path / "agent", 1, command, DTJ_PROCESSES_PER_POD="2") as agent:

        def scraped() -> tuple[dict[str, float], dict[str, float]]:
            try:
                text = agent.get(0, "/metrics").decode()
            except OSError:
                return {}, {}
            samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
            plain = {s.name.removeprefix("dtj_"): s.value for s in samples if s.labels.keys() == {"job"}}
            return plain, {s.labels["name"]: s.value for s in samples if s.name == "dtj_worker_metric"}

        def complete() -> bool:
            plain, metrics = scraped()
            return wanted <= plain.keys() and named <= metrics.keys()

        wait_until(f"{wanted} and {named}", complete, timeout=150, detail=agent.logs)
        plain, metrics = scraped()
    assert plain["step"] >= 1
    assert plain["total_steps"] == 10**9
    assert metrics["validation_half"] == 0.5
    assert metrics["tokens_per_second"] == pytest.approx(10 * BATCH / metrics["step_seconds"])
    assert metrics["mfu"] == pytest.approx(1e6 * BATCH / metrics["step_seconds"] / 2 / 1e12)
    parts = (
        metrics["data_seconds"]
        + metrics["compute_seconds"]
        + metrics["exposed_seconds"]
        + metrics["checkpoint_seconds"]
    )
    assert 0 < parts <= metrics["step_seconds"]


def refused_by(agent: AgentSocket) -> list[str]:
    """Returns the messages of the events that a sink has failed."""
    events = [h["event"] for h in list(agent.heard) if "event" in h]
    return [e["message"] for e in events if e["reason"] == "SinkFailed"]


AWAY = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
}


@pytest.mark.torch
def test_training_continues_without_its_tracking_server_and_warns_once(tmp_path: Path) -> None:
    uri = f"http://127.0.0.1:{free_port()}"  # where nobody listens
    with AgentSocket(tmp_path / "agent") as agent:
        socket = {"DTJ_AGENT_SOCKET": str(agent.path)}
        with ranks(1, tracked, tmp_path, uri, str(tmp_path / "enough"), **AWAY, **socket) as group:
            group.wait_until(lambda: bool(refused_by(agent)))
            there = agent.heard[-1].get("step", 0)
            group.wait_until(lambda: agent.heard[-1].get("step", 0) > there + 10)
            (tmp_path / "enough").touch()
            assert group.wait() == [0], group.everything()
    (message,) = refused_by(agent)
    assert uri in message


@pytest.mark.thorough
@pytest.mark.torch
@pytest.mark.timeout(900)
def test_mlflow_server_gets_the_records_and_may_stop_during_the_run(tmp_path: Path) -> None:
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    command = [
        "mlflow",
        "server",
        "--backend-store-uri",
        f"sqlite:///{tmp_path}/m.db",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    with (tmp_path / "server.txt").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=tmp_path,
            env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},  # it has enough to start
        )
    try:

        def healthy() -> bool:
            try:
                with urllib.request.urlopen(f"{uri}/health", timeout=20) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        wait_until("mlflow server", healthy, timeout=200)
        from mlflow import MlflowClient

        client = MlflowClient(uri)
        with AgentSocket(tmp_path / "agent") as agent:
            socket = {"DTJ_AGENT_SOCKET": str(agent.path), "DTJ_JOB": "tracked", "DTJ_NAMESPACE": "team"}
            with ranks(1, tracked, tmp_path, uri, str(tmp_path / "enough"), **AWAY, **socket) as group:

                def there() -> bool:
                    experiment = client.get_experiment_by_name("default")
                    runs = (
                        client.search_runs([experiment.experiment_id], "tags.`dtj.job` = 'team/tracked'")
                        if experiment
                        else []
                    )
                    return bool(runs and len(client.get_metric_history(runs[0].info.run_id, "loss")) >= 3)

                group.wait_until(there)
                assert refused_by(agent) == []
                end(server)
                group.wait_until(lambda: bool(refused_by(agent)))
                last = agent.heard[-1].get("step", 0)
                group.wait_until(lambda: agent.heard[-1].get("step", 0) > last + 10)
                (tmp_path / "enough").touch()
                assert group.wait() == [0], group.everything()
        assert len(refused_by(agent)) == 1
    finally:
        end(server)


def end(server: subprocess.Popen[bytes]) -> None:
    """Kills the server and the processes that it started, which share its session."""
    try:
        os.killpg(server.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    server.wait(TIMEOUT)
