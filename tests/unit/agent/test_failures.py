"""Permanent failures, and the end of the job, with real processes."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from dtj_contract import names
from tests.lib.waiting import wait_until
from tests.unit.agent.harness import Group, kill, running


def ends(group: Group) -> dict:
    """Waits until every agent has exited with 1 and the same outcome. Returns the outcome."""
    assert [group.wait_exit(ordinal) for ordinal in range(group.replicas)] == [1] * group.replicas
    outcomes = [group.outcome(ordinal) for ordinal in range(group.replicas)]
    assert outcomes == [outcomes[0]] * group.replicas
    assert outcomes[0]["result"] == "Failed"
    return outcomes[0]


ARGPARSE = "import argparse; argparse.ArgumentParser().parse_args()"
PERMANENT = {
    "no such command": (["no-such-command"], "EntrypointNotFound", "no-such-command"),
    "no such script": ([sys.executable, "-u", "/no/such/train.py"], "EntrypointNotFound", "/no/such/train.py"),
    "no such module": ([sys.executable, "-u", "-m", "no_such_module"], "EntrypointNotFound", "no_such_module"),
    "a wrong flag": ([sys.executable, "-c", ARGPARSE, "--lrr", "1"], "UsageError", "unrecognized arguments: --lrr 1"),
    "exit code 93": ([sys.executable, "-c", "import sys; sys.exit(93)"], "NoRestartExitCode", "93"),
}


@pytest.mark.parametrize(("command", "reason", "evidence"), PERMANENT.values(), ids=PERMANENT)
def test_permanent_error_fails_the_job_at_once_with_its_evidence(
    tmp_path: Path, command: list[str], reason: str, evidence: str
) -> None:
    with running(tmp_path, 1, command) as group:
        outcome = ends(group)
        assert (outcome["reason"], outcome["attempt"], outcome["restarts"]["counted"]) == (reason, 1, 0)
        assert evidence in outcome["message"]
        assert outcome["failure"]["reason"] == reason


UNSURE = {
    "a failing import": ([sys.executable, "-c", "import torchh"], "ImportFailed", "No module named 'torchh'"),
    "a syntax error": ([sys.executable, "-c", "def f(:"], "ScriptError", "SyntaxError: invalid syntax"),
    "a name error": ([sys.executable, "-c", "optmizer.step()"], "ScriptError", "name 'optmizer' is not defined"),
    "a breakpoint": ([sys.executable, "-c", "breakpoint()"], "ScriptError", "bdb.BdbQuit"),
}


@pytest.mark.parametrize(("command", "reason", "evidence"), UNSURE.values(), ids=UNSURE)
def test_error_that_a_script_may_have_handled_is_tried_twice(
    tmp_path: Path, command: list[str], reason: str, evidence: str
) -> None:
    """A plain start has no record of what ended the script; a forked one has, and fails at once (test_warm.py)."""
    with running(tmp_path, 1, command) as group:
        outcome = ends(group)
        assert (outcome["reason"], outcome["restarts"]["counted"]) == (reason, 1)
        assert evidence in outcome["message"]


HANDLED = """
import logging, os, sys, time
try:
    import flash_attn_that_nobody_has
except ImportError:
    logging.exception("without flash attention")
print("trains", flush=True)
sys.exit(1 if os.environ["DTJ_ATTEMPT"] == "1" else 0)
"""


def test_handled_import_error_does_not_fail_the_job(tmp_path: Path) -> None:
    """The script trains without the package; it fails once for another reason, without a traceback of that."""
    with running(tmp_path, 1, [sys.executable, "-u", "-c", HANDLED]) as group:
        assert group.wait_exit(0) == 0, group.logs()
        assert (group.outcome()["attempt"], group.outcome()["restarts"]["counted"]) == (2, 1)


def test_handled_import_error_as_the_last_line_does_not_fail_the_job(tmp_path: Path) -> None:
    """The script ends without a line of its own, so this end looks like that of the import."""
    silent = HANDLED.replace('print("trains", flush=True)\n', "")
    with running(tmp_path, 1, [sys.executable, "-u", "-c", silent]) as group:
        assert group.wait_exit(0) == 0, group.logs()
        assert (group.outcome()["attempt"], group.outcome()["restarts"]["counted"]) == (2, 1)


RECORDED = """
import json, os, sys
message = {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Traceback of it", "timestamp": "1"}}
open(os.environ["TORCHELASTIC_ERROR_FILE"], "w").write(json.dumps({"message": message}))
sys.exit(1)
"""


def test_error_that_a_worker_recorded_is_the_message_of_its_failure(tmp_path: Path) -> None:
    with running(tmp_path, 1, [sys.executable, "-c", RECORDED], DTJ_MAX_RESTARTS="0") as group:
        failure = ends(group)["failure"]
        assert failure["message"] == "rank 0 exited with code 1: ValueError: boom"
        assert failure["logTail"] == "Traceback of it"


def test_import_error_after_progress_is_not_permanent(tmp_path: Path) -> None:
    """The node may have a broken disk, and another attempt may succeed."""
    with running(tmp_path, 2) as group:
        group.wait_attempt(1)
        (tmp_path / "worker.py").rename(tmp_path / "away")
        (tmp_path / "worker.py").write_text("import torchh")
        kill(group.worker(0))
        wait_until("two failures", lambda: len(group.status().get("failures", [])) >= 2)
        assert group.status()["outcome"] is None
        assert group.status()["failures"][1]["reason"] == "WorkerFailed"
        assert "torchh" in group.status()["failures"][1]["message"]


def test_spent_budget_fails_the_job_with_the_last_failures_evidence(tmp_path: Path) -> None:
    """With maxRestarts 1 the second failure is the last; its traceback is the evidence."""
    with running(tmp_path, 2, DTJ_MAX_RESTARTS="1") as group:
        group.wait_attempt(1)
        group.tell("raise-1", "first")
        group.wait_attempt(2)
        group.tell("raise-1", "second")
        outcome = ends(group)
        assert (outcome["reason"], outcome["attempt"]) == ("RestartBudgetSpent", 2)
        assert outcome["restarts"] == {"inPlace": 1, "pod": 0, "counted": 1}
        assert outcome["failure"]["message"] == "rank 1 exited with code 1: RuntimeError: second"
        assert "Traceback" in outcome["failure"]["logTail"]
        assert outcome["progress"]["step"] > 0


def test_agent_that_finds_an_outcome_serves_it_and_starts_nothing(tmp_path: Path) -> None:
    """The kubelet restarts the container; a pod 0 that has lost the outcome gets it from the others."""
    with running(tmp_path, 2) as group:
        group.wait_attempt(1)
        group.tell("finish")
        assert [group.wait_exit(0), group.wait_exit(1)] == [0, 0]
        (tmp_path / "termination-1").unlink()
        for path in group.plan.glob("ran-*"):
            path.unlink()
        group.start(1)
        group.start(0, DTJ_STATE_DIR=str(tmp_path / "new-disk"), DTJ_TERMINATION_LOG=str(tmp_path / "t"))
        assert group.wait_exit(0) == 0
        assert json.loads((tmp_path / "t").read_text()) == group.outcome(1) == group.outcome(0)
        group.start(0, DTJ_STATE_DIR=str(tmp_path / "new-disk"))
        status = wait_until("a status", lambda: group.status(0))
        assert (status["phase"], status["outcome"]["result"], status["waitingFor"]) == ("Finished", "Succeeded", [])
        assert group.status(1)["outcome"] == status["outcome"]
        assert not list(group.plan.glob("ran-*"))
        for agent in group.agents.values():
            agent.terminate()
        assert [group.wait_exit(0), group.wait_exit(1)] == [0, 0]


def test_rendezvous_timeout_names_the_member_that_never_came(tmp_path: Path) -> None:
    group = Group(tmp_path, 2, DTJ_RENDEZVOUS_TIMEOUT_SECONDS="1.5")
    try:
        group.start(0)
        assert group.wait_exit(0) == 1
        assert group.outcome()["reason"] == "RendezvousTimeout"
        assert "waiting for j-1 (never seen)" in group.outcome()["message"]
    finally:
        group.close()


def test_agent_with_a_wrong_secret_is_rejected_and_logged_once(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("00" * 32)
    group = Group(tmp_path, 2)
    try:
        group.start(0)
        group.start(1, **{names.ENV_SECRET_FILE: str(wrong)})
        wait_until("the agent to log its reason", lambda: "the peer does not have this job's secret" in group.log(1))
        time.sleep(1.0)  # many calls
        assert group.status()["waitingFor"] == [1]
        both = group.log(0) + group.log(1)
        assert both.count("secret") == 2, "each of the two calls the other"
        assert "00" * 32 not in both
        assert group.ran(1, 0) is None
    finally:
        group.close()


def test_lease_that_cannot_be_written_is_the_reason_for_waiting(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.write_text("a file where the folder should be")
    with running(tmp_path, 1, DTJ_CHECKPOINT_DIR=str(volume / "ns" / "j")) as group:
        status = wait_until(
            "the reason in the status",
            lambda: (s := group.status()) and s["phaseReason"] == "CheckpointVolumeUnavailable" and s,
        )
        assert (status["phase"], status["events"][-1]["reason"]) == ("Rendezvous", "CheckpointVolumeUnavailable")
        assert "volume" in status["events"][-1]["message"]
        volume.unlink()
        group.wait_attempt(1)
        assert (volume / "ns" / "j" / names.LEASE_FILE).read_text().strip() >= "1"


def test_wrong_environment_is_named_in_the_termination_message(tmp_path: Path) -> None:
    """Exit code 2: the workers are not at fault, and no restart helps before someone changes the environment."""
    (tmp_path / "file").touch()
    group = Group(tmp_path, 1)
    wrong = {"DTJ_STATE_DIR": str(tmp_path / "file" / "x"), "DTJ_POD_IP": "192.0.2.1", "DTJ_LISTEN": "192.0.2.1:29400"}
    try:
        for variable, value in wrong.items():
            group.start(0, **{"DTJ_POD_IP": "127.0.0.1", variable: value})
            assert group.wait_exit(0) == 2, group.logs()
            assert (tmp_path / "termination-0").read_text().startswith(variable + ": ")
    finally:
        group.close()
