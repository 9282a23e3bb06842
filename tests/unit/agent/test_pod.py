"""The agent as PID 1 of its pod: signals, zombies, logs, the worker's environment; with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dtj_contract import names
from tests.lib.waiting import wait_until
from tests.unit.agent.harness import Group, is_alive, kill, running


def test_sigterm_lets_all_workers_save_and_costs_no_budget(tmp_path: Path) -> None:
    """When a pod is deleted, every rank gets SIGTERM, so that they can checkpoint together."""
    with running(tmp_path, 2) as group:
        group.tell("handle-sigterm")
        group.wait_attempt(1)
        group.agents[1].terminate()
        assert group.wait_exit(1) == names.EXIT_TERMINATED
        wait_until("the worker to save", lambda: "[rank 0] saving on SIGTERM" in group.log(0))
        assert "[rank 1] saving on SIGTERM" in group.log(1)
        group.start(1, DTJ_STATE_DIR=str(tmp_path / "new-disk"))
        status = group.wait_attempt(2)
        assert status["restarts"] == {"inPlace": 0, "pod": 1, "counted": 0}
        assert status["recoveries"][-1]["reason"] == "PodLost"


def test_handler_that_saves_after_a_peer_failed_gets_the_stop_grace(tmp_path: Path) -> None:
    """The handler takes three times as long as the default grace of half a second."""
    script = tmp_path / "saves.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "plan = os.environ['PLAN']\n"
        "def save(*_):\n"
        "    time.sleep(1.5)\n"
        "    open(plan + '/saved-' + os.environ['RANK'], 'w').close()\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "if os.environ['RANK'] == '1':\n"
        "    while not os.path.exists(plan + '/ready'): time.sleep(0.01)\n"
        "    sys.exit(3)\n"
        "open(plan + '/ready', 'w').close()\n"
        "while True: time.sleep(0.05)\n"
    )
    settings = {"DTJ_STOP_GRACE_SECONDS": "60", "DTJ_MAX_RESTARTS": "0"}
    with running(tmp_path, 2, [sys.executable, str(script)], **settings) as group:
        assert [group.wait_exit(0), group.wait_exit(1)] == [1, 1]
        assert (group.plan / "saved-0").exists()


def test_worker_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    with running(tmp_path, 1, DTJ_GRACE_SECONDS="1") as group:
        group.tell("ignore-sigterm")
        group.wait_attempt(1)
        started = time.monotonic()
        group.agents[0].terminate()
        assert group.wait_exit(0) == names.EXIT_TERMINATED
        assert 0.9 < time.monotonic() - started < 20, "the grace of a pod's end is 25 s by default"


def test_second_sigterm_ends_the_agent_at_once(tmp_path: Path) -> None:
    with running(tmp_path, 1, DTJ_GRACE_SECONDS="60") as group:
        group.tell("ignore-sigterm")
        group.wait_attempt(1)
        group.agents[0].terminate()
        wait_until("the agent to log its end", lambda: "SIGTERM: this pod is terminating" in group.log(0))
        group.agents[0].terminate()
        assert group.wait_exit(0, 45) == names.EXIT_TERMINATED, "before the grace is over"


FAMILY = """
import os, subprocess, sys, time
# A child in the group, a child that left it, and an orphan whose parent ends before it.
code = "import os,sys,time; open(os.path.join(%r, 'pid-x%s'), 'w').write(str(os.getpid())); time.sleep(600)"
plan = os.environ["PLAN"]
subprocess.Popen([sys.executable, "-c", code % (plan, "1")])
subprocess.Popen([sys.executable, "-c", code % (plan, "2")], start_new_session=True)
middle = "import subprocess,sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True)"
subprocess.Popen([sys.executable, "-c", middle, code % (plan, "3")]).wait()
for _ in range(20):
    subprocess.Popen(["sh", "-c", "true & exit 0"])
while not os.path.exists(os.path.join(plan, "finish")):
    time.sleep(0.05)
"""


@pytest.mark.parametrize("finish", [True, False], ids=["a worker that exits with 0", "a worker that is killed"])
def test_no_child_of_a_worker_survives_and_no_zombie_stays(tmp_path: Path, finish: bool) -> None:
    script = tmp_path / "family.py"
    script.write_text(FAMILY)
    with running(tmp_path, 1, [sys.executable, str(script)]) as group:
        pids = [
            int(wait_until(f"process {n}", lambda n=n: (p := group.plan / f"pid-x{n}").exists() and p.read_text()))
            for n in "123"
        ]
        agent = group.agents[0].pid
        if finish:
            group.tell("finish")
            assert group.wait_exit(0) == 0
        else:
            worker = int(Path(f"/proc/{agent}/task/{agent}/children").read_text().split()[0])
            os.killpg(worker, signal.SIGKILL)
            wait_until("attempt 2", lambda: group.status()["attempt"] == 2)
            group.agents[0].terminate()
            group.wait_exit(0)
        wait_until(f"{pids} of the first attempt to end", lambda: not any(is_alive(pid) for pid in pids))


def test_orphans_are_reaped_while_the_worker_runs(tmp_path: Path) -> None:
    script = tmp_path / "orphans.py"
    script.write_text(
        "import os, subprocess, time\n"
        "for _ in range(30): subprocess.call(['sh', '-c', 'sleep 0.05 &'])\n"
        "open(os.environ['PLAN'] + '/made', 'w').close()\n"
        "time.sleep(600)\n"
    )
    with running(tmp_path, 1, [sys.executable, str(script)]) as group:
        agent = group.agents[0].pid

        def children() -> list[int]:
            return [int(pid) for pid in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]

        worker = wait_until("a worker", children)[0]
        wait_until("the orphans", (group.plan / "made").exists)
        wait_until("the orphans and their zombies to go", lambda: children() == [worker])


def test_every_worker_line_has_its_rank_and_the_volume_has_a_copy(tmp_path: Path) -> None:
    code = "import os, sys; print('out'); sys.stderr.write('err\\nno end')"
    volume = tmp_path / "volume"
    command = [sys.executable, "-u", "-c", code]
    with running(tmp_path, 2, command, DTJ_PROCESSES_PER_POD="2", DTJ_CHECKPOINT_DIR=str(volume)) as group:
        group.wait_exit(0)
        group.wait_exit(1)
        for ordinal, ranks in ((0, (0, 1)), (1, (2, 3))):
            for text in (group.log(ordinal), (volume / names.LOG_FOLDER / f"j-{ordinal}.log").read_text()):
                lines = text.splitlines()
                assert all(line.startswith(("[agent] ", *(f"[rank {rank}] " for rank in ranks))) for line in lines), (
                    text
                )
                assert {f"[rank {rank}] {end}" for rank in ranks for end in ("out", "err", "no end")} <= set(lines)


def test_agent_never_outlives_the_local_run_that_started_it(tmp_path: Path) -> None:
    """After kill -9 of `dtj run` its agents exit by themselves, with their workers."""
    group = Group(tmp_path, 1)
    starter = (
        "import subprocess, sys, os, time;"
        "os.environ['DTJ_DIE_WITH_PARENT'] = str(os.getpid());"
        "p = subprocess.Popen([sys.executable, '-m', 'dtj_agent', '--', *sys.argv[1:]]);"
        "open(os.path.join(os.environ['PLAN'], 'pid-agent'), 'w').write(str(p.pid)); time.sleep(600)"
    )
    environ = {
        names.ENV_JOB: "j",
        names.ENV_JOB_UID: "u",
        names.ENV_REPLICAS: "1",
        names.ENV_ORDINAL: "0",
        names.ENV_PEERS: group.peers,
        names.ENV_LISTEN: f"127.0.0.1:{group.ports[0]}",
        names.ENV_SECRET_FILE: str(tmp_path / "key"),
        names.ENV_STATE_DIR: str(tmp_path / "s"),
        names.ENV_TERMINATION_LOG: str(tmp_path / "t"),
        "PLAN": str(group.plan),
    }
    with open(tmp_path / "log", "wb") as log:
        run = subprocess.Popen(
            [sys.executable, "-c", starter, *group.command], env={**os.environ, **environ}, stdout=log, stderr=log
        )
    try:
        wait_until("rank 0 of attempt 1", lambda: group.ran(1, 0))
        pids = [int((group.plan / "pid-agent").read_text()), group.worker(0)]
    finally:
        run.kill()
        run.wait()
    wait_until("all processes to end", lambda: not any(is_alive(pid) for pid in pids))


def test_agent_whose_local_run_has_died_before_it_starts_ends_at_once(tmp_path: Path) -> None:
    group = Group(tmp_path, 1)
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    environ = {
        names.ENV_JOB: "j",
        names.ENV_JOB_UID: "u",
        names.ENV_REPLICAS: "1",
        names.ENV_ORDINAL: "0",
        names.ENV_PEERS: group.peers,
        names.ENV_LISTEN: f"127.0.0.1:{group.ports[0]}",
        names.ENV_SECRET_FILE: str(tmp_path / "key"),
        names.ENV_STATE_DIR: str(tmp_path / "s"),
        names.ENV_TERMINATION_LOG: str(tmp_path / "t"),
        names.ENV_DIE_WITH_PARENT: gone.stdout.strip(),
        "PLAN": str(group.plan),
    }
    agent = subprocess.run(
        [sys.executable, "-m", "dtj_agent", "--", *group.command],
        env={**os.environ, **environ}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert agent.returncode == names.EXIT_TERMINATED
    assert agent.stdout == "[agent] the process that started this agent has died\n"
    assert not (tmp_path / "s").exists()


def test_killed_agent_leaves_no_worker_behind(tmp_path: Path) -> None:
    with running(tmp_path, 1) as group:
        group.wait_attempt(1)
        worker = group.worker(0)
        kill(group.agents[0].pid)
        wait_until("the worker to end", lambda: not is_alive(worker))


# --- the environment ------------------------------------------------------------------------------

SHOW = """
import json, os
open(os.path.join(os.environ["SHOW"], os.environ["RANK"] + ".json"), "w").write(json.dumps(dict(os.environ)))
"""
OF_THE_AGENT = {"TORCHELASTIC_SIGNALS_TO_HANDLE"}  # torchrun configures its own agent with it, and leaks it
OF_THE_RUN = {
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_MAX_RESTARTS",
}
# Composer and others read NODE_RANK, and have launchers of their own because torchrun does not set it.
BEYOND = {"NODE_RANK", "KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_TOKEN"}


@pytest.mark.torch
def test_worker_gets_the_environment_that_torchrun_gives(tmp_path: Path) -> None:
    """Keys and values are equal, except for those that name a run and the contract's DTJ_*."""
    theirs, ours, script = tmp_path / "theirs", tmp_path / "ours", tmp_path / "show.py"
    theirs.mkdir()
    ours.mkdir()
    script.write_text(SHOW)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("DTJ_", "OMP_", "PYTEST_"))}
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", str(script)],
        env={**clean, "SHOW": str(theirs)},
        check=True,
        timeout=240,
        capture_output=True,
    )
    with running(tmp_path, 1, [sys.executable, str(script)], DTJ_PROCESSES_PER_POD="2", SHOW=str(ours)) as group:
        assert group.wait_exit(0) == 0
    for rank in ("0", "1"):
        their, our = (json.loads((folder / f"{rank}.json").read_text()) for folder in (theirs, ours))
        known = set(clean) | OF_THE_AGENT | {"SHOW", "PLAN"} | {key for key in our if key.startswith("PYTEST_")}
        our_new, their_new = (
            {k: v for k, v in our.items() if k not in known},
            {k: v for k, v in their.items() if k not in known},
        )
        assert set(names.TORCHRUN_ENV) <= set(their_new)
        assert {key for key in our_new if not key.startswith("DTJ_")} == set(their_new) | BEYOND
        assert our_new["NODE_RANK"] == our_new["GROUP_RANK"]
        for key in set(their_new) - OF_THE_RUN:
            assert our_new[key] == their_new[key], key
        assert "DTJ_SECRET_FILE" not in our
