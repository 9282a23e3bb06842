"""The three calls for a loop of any framework, in processes that have only the file itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dtj_contract import worker_report
from dtj_trainer import rank as helper
from tests.lib.waiting import wait_until
from tests.unit.trainer.ranks import AgentSocket

# -I and -S: no package is there, so the file is standard library alone.
LOOP = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import rank
gate = Path(sys.argv[2])
start, folder = rank.newest() or (0, None)
total = json.loads((folder / "state.json").read_text()) if folder else 0
for step in range(start + 1, 31):
    total += step
    rank.report(step, total=30, loss=1 / step, total_so_far=total)
    if step == 17 and not (gate.parent / "second").exists():
        gate.touch()
        while not rank._Stop.asked:
            pass
    rank.save(step, lambda folder: (folder / "state.json").write_text(json.dumps(total)), last=step == 30)
print("done", total, start)
"""


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    folder = tmp_path / "alone"
    folder.mkdir()
    shutil.copy(str(helper.__file__), folder / "rank.py")
    return folder


def start(alone: Path, rank: int = 0, attempt: int = 1, **more: str) -> subprocess.Popen[str]:
    environ = {
        "PATH": os.environ["PATH"], "RANK": str(rank), "DTJ_ATTEMPT": str(attempt),
        "DTJ_CHECKPOINT_DIR": str(alone / "saved"), "DTJ_CHECKPOINT_EVERY_STEPS": "5", **more,
    }  # fmt: skip
    command = [sys.executable, "-I", "-S", "-c", LOOP, str(alone), str(alone / "gate")]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def steps(alone: Path) -> list[str]:
    return sorted(path.name for path in (alone / "saved").glob("*") if path.name != "attempt")


def run(alone: Path, **more: Any) -> tuple[int, str]:
    process = start(alone, **more)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


def test_loop_saves_keeps_three_and_resumes(alone: Path) -> None:
    (alone / "second").touch()
    assert run(alone) == (0, "done 465 0\n")
    assert steps(alone) == ["step-00000020", "step-00000025", "step-00000030"]
    shutil.rmtree(alone / "saved/step-00000030")
    (alone / "saved/.incomplete-step-00000030-a1-r0").mkdir()
    assert run(alone, attempt=2) == (0, "done 465 25\n")


@pytest.mark.parametrize("rank", [0, 3])
def test_rank_that_gets_sigterm_saves_its_step_and_exits_with_143(rank: int, alone: Path) -> None:
    process = start(alone, rank=rank)
    wait_until("step 17", (alone / "gate").exists)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (143, "")
    assert steps(alone)[-1] == "step-00000017"
    (alone / "second").touch()
    assert run(alone, rank=rank, attempt=2) == (0, "done 465 17\n")


def test_rank_of_an_earlier_attempt_saves_nothing(alone: Path) -> None:
    (alone / "second").touch()
    (alone / "saved").mkdir()
    (alone / "saved/attempt").write_text("3\n")
    code, output = run(alone, attempt=2)
    assert (code, steps(alone)) == (1, [])
    assert "attempt 2 has ended: a newer one has begun, so step 5 is not saved" in output
    assert run(alone, attempt=3)[0] == 0


def test_agent_gets_valid_reports(alone: Path, tmp_path: Path) -> None:
    (alone / "second").touch()
    with AgentSocket(tmp_path / "agent.sock") as agent:
        assert run(alone, DTJ_AGENT_SOCKET=str(agent.path))[0] == 0
        assert run(alone, attempt=2, DTJ_AGENT_SOCKET=str(agent.path))[0] == 0
    reports = agent.heard
    assert reports == [worker_report.clean(report) for report in reports]
    first = next(report for report in reports if "step" in report)
    done = first["step"]
    assert (first["phase"], first["totalSteps"], first["loss"]) == ("training", 30, 1 / done)
    assert first["metrics"] == {"total_so_far": done * (done + 1) / 2}
    saved = [report["checkpoint"]["step"] for report in reports if "checkpoint" in report]
    assert saved == [5, 10, 15, 20, 25, 30]
    assert [report["resumedStep"] for report in reports if "resumedStep" in report] == [30]
    assert json.loads((alone / "saved/step-00000030/state.json").read_text()) == 465


def test_first_rank_removes_what_earlier_attempts_have_left(alone: Path) -> None:
    (alone / "second").touch()
    for name in (".incomplete-step-00000005-a1-r3", ".universal-step-00000005-a1", ".incomplete-step-00000005-a2-r3"):
        (alone / "saved" / name).mkdir(parents=True)
    assert run(alone, rank=1, attempt=2)[0] == 0
    assert len(steps(alone)) == 3, "only rank 0 removes anything"
    assert run(alone, attempt=2)[0] == 0
    assert [name for name in steps(alone) if name.startswith(".")] == [".incomplete-step-00000005-a2-r3"]
