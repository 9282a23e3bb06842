"""`dtj scale`: another number of pods for a job that `dtj run` runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.local import scaling
from tests.lib.waiting import wait_until
from tests.unit.client.elastic_worker import SAMPLES
from tests.unit.client.support import LocalRun, job_yaml

Start = Callable[..., LocalRun]
Dtj = Callable[..., tuple[int, str, str]]
WORKER = Path(__file__).with_name("elastic_worker.py")
EPOCHS = 75


def job(elastic: dict[str, Any] | None, **spec: Any) -> str:
    written = yaml.safe_load(job_yaml(**spec))
    if elastic is not None:
        written["spec"]["elastic"] = elastic
    return yaml.safe_dump(written)


@pytest.mark.torch
@pytest.mark.timeout(600)
def test_scaled_down_and_up_a_job_completes_and_uses_every_sample_once(start: Start, dtj: Dtj, tmp_path: Path) -> None:
    written = yaml.safe_load(job({"minReplicas": 2, "maxReplicas": 3, "waitSeconds": 1}, every=5))
    written["spec"]["entrypoint"] = {"script": str(WORKER), "args": [str(EPOCHS)]}
    run = start(job=yaml.safe_dump(written))
    for attempt, size in enumerate((2, 3), start=1):
        wait_until("the group trains", lambda number=attempt: trained(tmp_path, number) >= 5, timeout=240)
        code, out, error = dtj("scale", run.run_dir, "--replicas", size)
        assert (code, out) == (0, f"count scaled from {5 - size} to {size} pods\n"), error
    code, done = run.wait(400)
    assert code == 0, run.lines()
    changes = [(r["reason"], r["fromReplicas"], r["toReplicas"], r["lostSteps"]) for r in done["status"]["recoveries"]]
    assert changes == [("GroupShrunk", 3, 2, 0), ("GroupGrown", 2, 3, 0)]
    assert done["status"]["restarts"]["counted"] == 0
    steps = recorded(tmp_path)
    assert [step["step"] for step in steps] == list(range(len(steps)))
    assert {len(step["samples"]) for step in steps if step["attempt"] == 2} == {2}
    assert {step["attempt"] for step in steps} == {1, 2, 3}
    used = [number for step in steps for rank in step["samples"] for number in rank]
    assert len(used) == EPOCHS * SAMPLES
    for epoch in range(EPOCHS):
        assert sorted(used[SAMPLES * epoch : SAMPLES * (epoch + 1)]) == list(range(SAMPLES))


def trained(folder: Path, attempt: int) -> int:
    """Returns the number of steps that this attempt has done."""
    return sum(step["attempt"] == attempt for step in recorded(folder))


def recorded(folder: Path) -> list[dict[str, Any]]:
    """Returns what rank 0 has recorded of each step so far."""
    path = folder / ".dtj/volumes/shared/default/count/steps.jsonl"
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


@pytest.mark.parametrize(
    ("elastic", "replicas", "message"),
    [
        ({"minReplicas": 2, "maxReplicas": 3}, 1, "replicas must not be less than elastic.minReplicas or greater than"),
        ({"minReplicas": 2, "maxReplicas": 3}, 4, "replicas must not be less than elastic.minReplicas or greater than"),
        ({"minReplicas": 1}, 0, "greater than or equal to 1"),
        (None, 2, "replicas can't change while the job runs unless the job is elastic"),
    ],
)
def test_size_that_the_api_server_rejects_is_rejected(
    dtj: Dtj, tmp_path: Path, elastic: dict[str, Any] | None, replicas: int, message: str
) -> None:
    (tmp_path / "status.json").write_text(json.dumps(yaml.safe_load(job(elastic))))
    code, out, error = dtj("scale", tmp_path, "--replicas", replicas)
    assert (code, out) == (2, "")
    assert error.startswith(f"dtj: --replicas {replicas}: spec.replicas: ")
    assert message in error
    assert not (tmp_path / scaling.REQUEST).exists()


def test_same_size_is_no_request(dtj: Dtj, tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(json.dumps(yaml.safe_load(job(None))))
    assert dtj("scale", tmp_path, "--replicas", 3)[:2] == (0, "count unchanged: it has 3 pods\n")


def test_run_that_does_not_answer_leaves_no_request(dtj: Dtj, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "ANSWER_SECONDS", 0.1)
    (tmp_path / "status.json").write_text(json.dumps(yaml.safe_load(job({"minReplicas": 1}))))
    code, _, error = dtj("scale", tmp_path, "--replicas", 2)
    assert code == 1
    assert "did not answer" in error
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_finished_run_and_absent_run_are_named(dtj: Dtj, tmp_path: Path) -> None:
    code, _, error = dtj("scale", tmp_path / "none", "--replicas", 2)
    assert (code, "kubectl scale dtj/NAME" in error) == (2, True)
    finished = yaml.safe_load(job({"minReplicas": 1})) | {
        "status": {"conditions": [{"type": "Complete", "status": "True"}]}
    }
    (tmp_path / "status.json").write_text(json.dumps(finished))
    code, _, error = dtj("scale", tmp_path, "--replicas", 2)
    assert (code, "count has finished" in error) == (1, True)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"replicas": 9}', '{"replicas": "two"}'])
def test_request_that_is_wrong_changes_nothing_and_is_shown(tmp_path: Path, text: str) -> None:
    running = yaml.safe_load(job({"minReplicas": 1, "maxReplicas": 3}))
    before = json.dumps(running)
    (tmp_path / scaling.REQUEST).write_text(text)
    (line,) = scaling.take_request(running, tmp_path)
    assert line.startswith("dtj scale: ")
    assert json.dumps(running) == before
    assert scaling.take_request(running, tmp_path) == []


def test_request_raises_the_generation_once(tmp_path: Path) -> None:
    running = yaml.safe_load(job({"minReplicas": 1, "maxReplicas": 3}))
    for size in (2, 2):
        (tmp_path / scaling.REQUEST).write_text(json.dumps({"replicas": size}))
        scaling.take_request(running, tmp_path)
    assert (running["spec"]["replicas"], running["metadata"]["generation"]) == (2, 1)
