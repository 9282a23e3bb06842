"""The warm process of a whole agent, which is a zipapp as in a pod."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from dtj_agent.build import build
from dtj_contract import names
from tests.lib.pythons import interpreter
from tests.lib.waiting import wait_until
from tests.unit.agent.harness import WORKER, Group, is_alive, running
from tests.unit.agent.warm_site import STEP, write_site

COUNTED = WORKER.replace("    step += 1\n", "    step += 1\n    if step % 5 == 0:\n        " + STEP)
"""A worker that does a step of an optimizer after each five of its own."""
READY = re.compile(r"warm process (\d+) is ready")


def warm_pids(group: Group, ordinal: int) -> list[int]:
    return [int(pid) for pid in READY.findall(group.log(ordinal))]


def test_agent_forks_every_attempt_and_survives_its_warm_process(tmp_path: Path) -> None:
    build(str(tmp_path / "agent.pyz"))
    write_site(tmp_path / "site")
    script = tmp_path / "script.py"
    script.write_text("import torch, sys\nassert not [path for path in sys.path if 'pyz' in path]\n" + WORKER)
    environ = {"PYTHONPATH": str(tmp_path / "site"), names.ENV_WARM_WORKERS: names.WARM_AUTO}
    program = [sys.executable, str(tmp_path / "agent.pyz")]
    with running(tmp_path, 2, [sys.executable, "-u", str(script)], program, **environ) as group:
        group.wait_attempt(1)
        for rank in (0, 1):
            assert warm_pids(group, rank), group.logs()
            pid = group.worker(rank)
            assert os.getsid(pid) == pid
            assert f"\0RANK={rank}\0" in Path(f"/proc/{pid}/environ").read_text()
            assert Path(f"/proc/{pid}/cmdline").read_text().split("\0")[2] == str(script)
        os.kill(group.worker(1), signal.SIGKILL)
        group.wait_attempt(2)
        (failure,) = group.status()["failures"]
        assert (failure["rank"], failure["signal"]) == (1, "SIGKILL")
        os.kill(warm_pids(group, 0)[0], signal.SIGKILL)
        wait_until("another warm process", lambda: len(warm_pids(group, 0)) == 2, detail=group.logs)
        assert group.status()["attempt"] == 2, "workers that run are not affected"
        group.tell("exit-1", "7")
        group.wait_attempt(3)
        assert group.status()["failures"][-1]["exitCode"] == 7
        group.tell("finish")
        assert [group.wait_exit(0), group.wait_exit(1)] == [0, 0], group.logs()
        assert "without" not in group.log(0) + group.log(1)
        warm = [pid for ordinal in (0, 1) for pid in warm_pids(group, ordinal)]
        wait_until("the warm processes to end", lambda: not any(is_alive(pid) for pid in warm))


@pytest.mark.parametrize(
    ("text", "reason", "counted"),
    [
        ("import torchh\n", "ImportFailed", 0),
        ("import torch\ndef f(:\n", "ScriptError", 0),
        (
            "import logging, os, sys\n"
            "try:\n    import torchh\nexcept ImportError:\n    logging.exception('without')\n"
            "sys.exit(os.environ['DTJ_ATTEMPT'] == '1')\n",
            "AllWorkersSucceeded",
            1,
        ),
    ],
    ids=["an import", "a syntax error", "an import that was handled"],
)
def test_error_that_a_forked_script_did_not_handle_fails_the_job_at_once(
    tmp_path: Path, text: str, reason: str, counted: int
) -> None:
    write_site(tmp_path / "site")
    script = tmp_path / "script.py"
    script.write_text(text)
    build(str(tmp_path / "agent.pyz"))
    environ = {"PYTHONPATH": str(tmp_path / "site"), names.ENV_WARM_WORKERS: names.WARM_AUTO}
    program = [sys.executable, str(tmp_path / "agent.pyz")]
    with running(tmp_path, 1, [sys.executable, "-u", str(script)], program, **environ) as group:
        group.wait_exit(0)
        assert "without a warm" not in group.log(0)
        assert (group.outcome()["reason"], group.outcome()["restarts"]["counted"]) == (reason, counted), group.logs()


def test_attempt_does_not_wait_for_a_warm_process_that_a_signal_has_stopped(tmp_path: Path) -> None:
    write_site(tmp_path / "site")
    script = tmp_path / "script.py"
    script.write_text("import torch\n" + WORKER)
    environ = {"PYTHONPATH": str(tmp_path / "site"), names.ENV_WARM_WORKERS: names.WARM_AUTO}
    with running(tmp_path, 1, [sys.executable, "-u", str(script)], **environ) as group:
        group.wait_attempt(1)
        os.kill(warm_pids(group, 0)[0], signal.SIGSTOP)
        os.kill(group.worker(0), signal.SIGKILL)
        group.wait_attempt(2)
        assert "a signal has stopped it; it is continued" in group.log(0)
        assert "without" not in group.log(0)


def test_imports_of_one_attempt_are_there_in_the_next_and_after_the_agent(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    write_site(site, counted=True)
    script = tmp_path / "script.py"
    first = "import sys; print('heavy is there:', 'heavy.part' in sys.modules, flush=True); import heavy.part\n"
    script.write_text(first + COUNTED)
    environ = {"PYTHONPATH": str(site), names.ENV_WARM_WORKERS: names.WARM_AUTO}
    with running(tmp_path, 1, [sys.executable, "-u", str(script)], **environ) as group:
        group.wait_attempt(1)
        wait_until("the imports", lambda: "2 modules that the script imported" in group.log(0), detail=group.logs)
        os.kill(group.worker(0), signal.SIGKILL)
        group.wait_attempt(2)
        group.agents[0].kill()
        group.agents[0].wait()
        group.start(0)
        group.wait_attempt(3)
        found = re.findall(r"heavy is there: (\w+)", group.log(0))
        assert found == ["False", "True", "True"], group.logs()


@pytest.mark.parametrize("version", ["3.9", "3.13"])
def test_imports_ahead_that_end_an_attempt_are_given_up(tmp_path: Path, version: str) -> None:
    """No rule sees that the script adds a folder in which a package looks for a module: the second attempt fails."""
    python = interpreter(version) or sys.executable
    build(str(tmp_path / "agent.pyz"))
    site = tmp_path / "site-packages"
    write_site(site, counted=True)
    (site / "picky.py").write_text("try:\n    import choices\nexcept ImportError:\n    choices = None\n")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "choices.py").write_text("")
    script = tmp_path / "script.py"
    first = f"import sys; sys.path.append({str(tmp_path / 'conf')!r})\nimport picky\nassert picky.choices\n"
    script.write_text(first + COUNTED)
    environ = {"PYTHONPATH": str(site), names.ENV_WARM_WORKERS: names.WARM_AUTO}
    program = [python, str(tmp_path / "agent.pyz")]
    with running(tmp_path, 1, [python, "-u", str(script)], program, **environ) as group:
        group.wait_attempt(1)
        wait_until("the imports", lambda: "that the script imported are imported" in group.log(0), detail=group.logs)
        os.kill(group.worker(0), signal.SIGKILL)
        group.wait_attempt(3)
        assert group.log(0).count("AssertionError") == 1, group.logs()
        text = "attempt 2 ended before its first step: the script's imports are no longer done ahead"
        assert text in group.log(0), group.logs()
        assert len(warm_pids(group, 0)) == 2, "the next attempts are forked too"
        group.agents[0].kill()
        group.agents[0].wait()
        group.start(0)
        group.wait_attempt(4)
        assert group.log(0).count("AssertionError") == 1, "a restarted agent remembers it"
        assert "without a warm" not in group.log(0)
        group.tell("finish")
        assert group.wait_exit(0) == 0, group.logs()


def test_shell_command_is_started_plainly_and_the_log_has_the_reason(tmp_path: Path) -> None:
    with running(tmp_path, 1, ["sh", "-c", "echo done"], **{names.ENV_WARM_WORKERS: names.WARM_AUTO}) as group:
        assert group.wait_exit(0) == 0
        assert "workers are started without a warm process: the command is sh, not python3" in group.log(0)
