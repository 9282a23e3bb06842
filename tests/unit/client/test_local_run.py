"""`dtj run`: whole jobs with real processes on this machine."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dtj.local.log_tail import LogTail
from tests.lib.waiting import wait_until
from tests.unit.client.support import WORKER, LocalRun, job_yaml, script_job

Start = Callable[..., LocalRun]
UNDISTURBED = {step: repr(1.0 / (1 + step)) for step in range(1, 61)}


def conditions(job: dict[str, Any]) -> dict[str, str]:
    return {one["type"]: one["status"] for one in job["status"]["conditions"]}


def test_three_pods_complete_with_exit_code_0_and_leave_no_process(start: Start) -> None:
    run = start(steps=40)
    code, job = run.wait()
    assert code == 0, run.lines()
    assert conditions(job)["Complete"] == "True"
    assert job["status"]["attempt"] == 1
    assert job["status"]["progress"]["step"] == 40
    assert job["status"]["checkpoint"]["step"] == 40
    assert run.living() == {}
    text = "\n".join(run.lines())
    assert "count: Complete" in text
    assert re.search(r"reached +step 40/40, loss 0.02439, accuracy 0.5", text)
    assert sorted(path.name for path in run.run_dir.glob("*.log")) == ["count-0.log", "count-1.log", "count-2.log"]


def test_killed_worker_is_restarted_in_place_and_no_agent_is_touched(start: Start, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    args = f"--hold-at 35 --gate {gate}"  # between two checkpoints, so that both attempts pass it
    run = start("--kill", "worker:1@step=25", steps=60, replicas=2, processes=2, args=args)
    wait_until("both agents run", lambda: len(run.agents()) == 2)
    agents = set(run.agents())
    wait_until("the second attempt", lambda: run.status().get("attempt") == 2)
    assert set(run.agents()) == agents
    gate.touch()
    code, job = run.wait()
    assert code == 0, run.lines()
    assert job["status"]["restarts"] == {"total": 1, "inPlace": 1, "pod": 0, "counted": 1}
    (recovery,) = job["status"]["recoveries"]
    assert recovery["kind"] == "InPlace"
    assert 0 <= recovery["lostSteps"] <= 10, "at most one checkpoint interval"
    (failure,) = job["status"]["failures"]
    assert (failure["rank"], failure["signal"]) == (1, "SIGKILL")
    assert run.losses() == UNDISTURBED
    assert any(line.startswith("  recovery     WorkerFailed (InPlace) -> attempt 2: ") for line in run.lines())
    assert run.living() == {}


@pytest.mark.parametrize("ordinal", [0, 1, 2])
def test_lost_pod_is_recreated_and_the_group_resumes_from_the_checkpoint(start: Start, ordinal: int) -> None:
    run = start("--kill", f"pod:{ordinal}@step=25", steps=60, args="--hold-at 30")
    code, job = run.wait()
    assert code == 0, run.lines()
    assert job["status"]["attempt"] == 2
    assert job["status"]["restarts"]["counted"] == 0, "a lost pod costs no budget"
    (recovery,) = job["status"]["recoveries"]
    assert recovery["resumedStep"] in (20, 30)
    (lost,) = [line for line in run.lines() if " PodLost: " in line]
    assert f"count-{ordinal} " in lost
    assert run.losses() == UNDISTURBED
    assert run.living() == {}


def test_failed_job_exits_with_1_and_the_evidence(start: Start) -> None:
    run = start(steps=40, max_restarts=0, args="--fail-at 15 --exit-code 3")
    code, job = run.wait()
    assert code == 1
    assert conditions(job)["Failed"] == "True"
    failure = job["status"]["failures"][-1]
    assert failure["exitCode"] == 3
    assert "found a hole at step 15" in failure["logTail"]
    assert any("found a hole at step 15" in line for line in run.lines()), "the summary shows it"
    assert run.living() == {}


def test_local_run_enforces_the_active_deadline(start: Start) -> None:
    run = start(steps=100_000, more="  activeDeadlineSeconds: 2")
    code, job = run.wait()
    assert code == 1
    failed = next(one for one in job["status"]["conditions"] if one["type"] == "Failed")
    assert failed["reason"] == "DeadlineExceeded"
    assert run.living() == {}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_the_run_and_leaves_no_process(start: Start, number: signal.Signals, code: int) -> None:
    run = start(steps=100_000)
    run.until_step(3)
    assert len(run.agents()) == 3
    run.signal(number)
    assert run.wait()[0] == code
    assert run.living() == {}


def test_second_signal_kills_workers_that_ignore_the_first(start: Start) -> None:
    run = start(steps=100_000, more="  template: {spec: {terminationGracePeriodSeconds: 600}}", args="--deaf")
    run.until_step(3)
    run.signal(signal.SIGINT)
    wait_until("dtj reports the signal", lambda: any("stopping all workers" in line for line in run.lines()))
    assert len(run.agents()) == 3
    run.signal(signal.SIGINT)
    assert run.wait()[0] == 130
    assert run.living() == {}


def test_no_process_outlives_a_killed_dtj(start: Start) -> None:
    run = start(steps=100_000)
    run.until_step(3)
    run.signal(signal.SIGKILL)
    wait_until("all processes are gone", lambda: not run.living())


def test_process_in_another_session_ends_with_a_killed_dtj(start: Start) -> None:
    run = start(steps=100_000, args="--child")
    wait_until("all three children run", lambda: sum("SIG_IGN" in text for text in run.living().values()) == 3)
    run.signal(signal.SIGKILL)
    wait_until("all processes are gone", lambda: not run.living())
    assert run.living() == {}


def test_second_run_resumes_from_checkpoints_and_fresh_starts_over(start: Start) -> None:
    assert start(steps=20).wait()[0] == 0
    second = start(steps=40)
    assert second.wait()[0] == 0
    assert any("resuming from step 20" in line for line in second.lines())
    assert min(second.losses()) == 21
    third = start("--fresh", steps=20)
    assert third.wait()[0] == 0
    assert min(third.losses()) == 1


def test_fault_that_was_never_injected_is_reported(start: Start) -> None:
    run = start("--kill", "worker:0@step=500", steps=20)
    assert run.wait()[0] == 0
    assert "--kill worker:0@step=500: the job ended before that step" in run.lines()


TORCHRUN_SCRIPT = """\
  template:
    spec:
      containers:
        - name: main
          command: [sh, -c, 'echo $RANK of $WORLD_SIZE, $(WHO), $DTJ_BACKEND, $HOME']
          env: [{name: WHO, value: you}]
          resources: {limits: {nvidia.com/gpu: 1}}
"""


def test_any_command_runs_without_checkpoints_or_reports(start: Start) -> None:
    lines = [
        line for line in job_yaml(replicas=2).splitlines() if not re.match(r"  (entrypoint|checkpoint|backend):", line)
    ]
    run = start("--logs", job="\n".join(lines) + "\n" + TORCHRUN_SCRIPT, environ={"HOME": "/home/jane"})
    code, job = run.wait()
    assert code == 0, run.lines()
    assert "progress" not in job["status"]
    assert job["run"]["checkpoints"] is None
    backend = "nccl" if Path("/dev/nvidiactl").exists() else "gloo"
    for rank in (0, 1):
        assert f"count-{rank} [rank {rank}] {rank} of 2, you, {backend}, /home/jane" in run.lines()


def test_logs_flag_shows_the_output_of_workers(start: Start) -> None:
    run = start("--logs", steps=20)
    assert run.wait()[0] == 0
    assert f"count-0 [rank 0] step 20 loss {1 / 21!r}" in run.lines()


def test_second_run_of_a_job_cannot_write_to_the_same_checkpoints(start: Start) -> None:
    first = start(steps=100_000)
    first.until_step(3)
    second = start(steps=10)
    assert second.wait()[0] == 1
    assert any("another dtj run of this job writes to" in line for line in second.lines())
    first.signal(signal.SIGINT)
    assert first.wait()[0] == 130
    assert any(line.startswith("count: interrupted while Running after") for line in first.lines())


def test_concurrent_run_has_its_own_ports(start: Start, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    runs = [start(folder=folder, steps=40) for folder in folders]
    assert [run.wait()[0] for run in runs] == [0, 0]


def own_output(run: LocalRun) -> list[str]:
    """Returns the lines of workers that the run shows."""
    return [line for line in run.lines() if "[rank " in line or "[agent]" in line]


def test_default_output_is_that_of_rank_0(start: Start) -> None:
    run = start(job=script_job("10"))
    assert run.wait()[0] == 0
    assert own_output(run) == ["[rank 0] attempt 1 begins at 0", "[rank 0] step 10"], (
        "a progress bar shows its last state"
    )


@pytest.mark.parametrize(("flags", "shown"), [(("--rank", "1"), ["[rank 1] "]), (("--no-logs",), [])])
def test_flag_selects_another_rank_or_none(start: Start, flags: tuple[str, ...], shown: list[str]) -> None:
    run = start(*flags, job=script_job("10"))
    assert run.wait()[0] == 0
    assert {line[: len("[rank 1] ")] for line in own_output(run)} == set(shown)


def test_excess_output_is_omitted_and_counted(tmp_path: Path) -> None:
    log = tmp_path / "count-0.log"
    tail = LogTail(tmp_path, 0)
    log.write_text(
        "".join(f"[rank 0] line {n}\n[rank 1] line {n}\n" for n in range(200)) + "[rank 0] " + "x" * 10_000 + "\n"
    )
    shown = tail.lines()
    assert shown[0] == f"[rank 0] ... 151 lines omitted; all are in {log}"
    assert shown[1:-1] == [f"[rank 0] line {n}" for n in range(151, 200)]
    assert len(shown[-1]) <= 500
    with log.open("a") as file:
        file.write("[rank 0] after\n[rank 0] not who")
    assert tail.lines() == ["[rank 0] after"]
    with log.open("a") as file:
        file.write("le\n" + "[rank 0] much\n" * 100_000)
    assert tail.lines()[0].startswith("[rank 0] ... at least ")
    assert tail.lines() == []


def test_interrupted_run_shows_the_error_that_made_it_restart(start: Start) -> None:
    run = start(job=script_job("10", "fail"))
    wait_until("the second attempt", lambda: run.status().get("attempt", 0) >= 2)
    run.signal(signal.SIGINT)
    assert run.wait()[0] == 130
    text = "\n".join(run.lines()).rpartition("count: interrupted while")[2]
    assert "| RuntimeError: the table of samples is not whole" in text


def test_table_shows_the_restarts_of_the_group(start: Start) -> None:
    run = start("--kill", "worker:1@step=25", steps=100_000, replicas=2, args="--hold-at 30", tty=True)
    restarted = re.compile(r"count-0 +Running +\d+ .* 1 *\r?\n")
    wait_until("pod 0 was restarted with the group", lambda: restarted.search(run.screen()), timeout=60)
    run.signal(signal.SIGINT)
    assert run.process.wait(60) == 130


def test_dumb_terminal_gets_lines(start: Start) -> None:
    run = start(steps=40, environ={"TERM": "dumb"}, tty=True)
    assert run.process.wait(60) == 0
    wait_until("the summary", lambda: "count: Complete" in run.screen())
    assert "count Running attempt 1" in run.screen()
    assert "[rank 0] step 40 loss" in run.screen()


def test_terminal_shows_no_running_pod_after_the_end(start: Start) -> None:
    run = start(steps=40, tty=True)
    assert run.process.wait(60) == 0
    wait_until("the summary", lambda: "count: Complete" in run.screen())
    assert "count-0" not in run.screen().rpartition("count  Complete")[2].partition("count: Complete")[0]


def test_missing_entrypoint_names_the_folder_it_was_looked_up_in(start: Start) -> None:
    job = job_yaml(replicas=1).replace(str(WORKER), "none.py")
    run = start(job=job)
    assert run.wait()[0] == 1
    assert f"  advice       a relative path in entrypoint starts at {run.folder}, where dtj was started" in run.lines()


def test_failed_import_names_the_python_that_lacks_it(start: Start, tmp_path: Path) -> None:
    (tmp_path / "lacking.py").write_text("import nothing_of_this_name\n")
    run = start(job=job_yaml(replicas=1).replace(str(WORKER), str(tmp_path / "lacking.py")))
    assert run.wait()[0] == 1
    assert any(line.startswith(f"  advice       the workers run in {sys.executable}: ") for line in run.lines())


def test_second_signal_still_prints_the_summary_and_the_logs(start: Start) -> None:
    run = start(steps=100_000, more="  template: {spec: {terminationGracePeriodSeconds: 600}}", args="--deaf")
    run.until_step(3)
    run.signal(signal.SIGINT)
    wait_until("dtj reports the signal", lambda: any("stopping all workers" in line for line in run.lines()))
    run.signal(signal.SIGINT)
    assert run.wait()[0] == 130
    assert any(line.startswith("  logs         ") for line in run.lines())


def test_folder_of_runs_is_ignored_by_git(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(job_yaml(steps=3, replicas=1))
    command = [sys.executable, "-m", "dtj.main", "run", "job.yaml"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=True)
    assert (tmp_path / ".dtj/.gitignore").read_text() == "*\n"


def test_spare_takes_the_ranks_of_a_killed_pod(start: Start) -> None:
    job = job_yaml(steps=60, replicas=2, args="--hold-at 30").replace("  replicas: 2\n", "  replicas: 2\n  spares: 1\n")
    run = start("--kill", "pod:1@step=25", job=job)
    code, job_read = run.wait()
    assert code == 0, run.lines()
    status = job_read["status"]
    (recovery,) = status["recoveries"]
    assert recovery["kind"] == "Spare", run.lines()
    assert status["restarts"]["counted"] == 0
    assert status["ready"].endswith("/2")
    assert any("SpareUsed" in line for line in run.lines())
    assert run.losses() == UNDISTURBED
    assert run.living() == {}


def test_elastic_job_runs_and_sees_its_whole_group(start: Start) -> None:
    job = job_yaml(steps=40, replicas=2).replace("  replicas: 2\n", "  replicas: 2\n  elastic: {minReplicas: 1}\n")
    run = start(job=job)
    code, found = run.wait()
    assert code == 0, run.lines()
    assert found["status"]["attempt"] == 1


def test_whichever_pod_coordinates_its_loss_is_recovered_and_seen(start: Start) -> None:
    job = job_yaml(steps=60, replicas=2, args="--hold-at 30").replace("  replicas: 2\n", "  replicas: 2\n  spares: 1\n")
    run = start(job=job)
    run.until_step(25)
    leader = wait_until("a pod coordinates", lambda: run.status().get("coordinator"))
    for pid in run.living():
        if f"DTJ_POD_NAME={leader}\0" in _environment(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    code, found = run.wait()
    assert code == 0, run.lines()
    assert found["status"]["attempt"] >= 2
    assert found["status"]["recoveries"]
    assert run.losses() == UNDISTURBED


def _environment(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""
