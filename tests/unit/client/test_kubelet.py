"""A local pod behaves like a kubelet's.

Its container is restarted, and the container's end ends all its processes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dtj.errors import LocalRunError
from dtj.local import pods, processes
from dtj.local.container import LocalContainer
from dtj.local.kubelet import LocalPod
from tests.lib.waiting import wait_until_async

SET = {
    "metadata": {"name": "j", "namespace": "default", "uid": "set"},
    "spec": {"template": {"spec": {"containers": [{"name": "trainer"}]}}},
}
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def make(folder: Path, *argv: str, ordinal: int = 0) -> LocalPod:
    pod = pods.new_pod(SET, ordinal, uid=str(uuid.uuid4()), node="n", now=datetime.now(UTC))
    tag = f"test/{pod['metadata']['uid']}"
    container = LocalContainer(
        argv=argv,
        environment={**os.environ, "DTJ_LOCAL_POD": tag, "TERMINATION_LOG": str(folder / f"end-{ordinal}")},
        working_dir=folder,
        folders=(folder / "made",),
        termination_log=folder / f"end-{ordinal}",
        log=folder / f"log-{ordinal}",
    )
    return LocalPod(pod, container, tag, now=lambda: datetime.now(UTC), changed=lambda: None)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    asyncio.run(main())


def test_ended_container_is_restarted_and_its_message_is_kept(tmp_path: Path) -> None:
    async def test() -> None:
        pod = make(
            tmp_path,
            "/bin/sh",
            "-c",
            'test -s log-0 || { echo once; printf why > "$TERMINATION_LOG"; exit 3; }; sleep 600',
        )
        await wait_until_async("one restart", lambda: pods.container_status(pod.object)["restartCount"] == 1)
        status = pods.container_status(pod.object)
        assert "running" in status["state"]
        ended = status["lastState"]["terminated"]
        assert (ended["exitCode"], ended["reason"], ended["message"]) == (3, "Error", "why")
        await pod.stop(5)
        assert pod.gone
        assert pods.container_status(pod.object)["state"]["terminated"]["exitCode"] == 128 + 15

    run(test)


def test_repeatedly_ending_container_backs_off(tmp_path: Path) -> None:
    async def test() -> None:
        pod = make(tmp_path, "/bin/false")
        await wait_until_async("the back-off", lambda: pods.pod_state(pod.object) == "CrashLoopBackOff")
        assert pods.container_status(pod.object)["lastState"]["terminated"]["exitCode"] == 1
        await pod.stop(5)

    run(test)


def test_sigterm_reaches_an_agent_that_is_just_starting(tmp_path: Path) -> None:
    """A process in exec(2) shows no environment for a moment, so no lookup finds it by its tag."""

    async def test() -> None:
        began = time.monotonic()
        for _ in range(4):
            group = [make(tmp_path, "/bin/sleep", "600", ordinal=ordinal) for ordinal in range(8)]

            async def stop_at_once(pod: LocalPod) -> None:
                await asyncio.sleep(0)  # requested, but not running yet
                await pod.stop(120)

            await asyncio.gather(*map(stop_at_once, group))
        assert time.monotonic() - began < 100, "no pod took the whole grace period of 120 s"

    run(test)


def test_process_that_ignores_sigterm_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    async def test() -> None:
        pod = make(tmp_path, sys.executable, "-c", DEAF.replace("time.sleep", "print('deaf', flush=True); time.sleep"))
        await wait_until_async("a log", lambda: (tmp_path / "log-0").exists() and (tmp_path / "log-0").read_text())
        await pod.stop(0.2)
        assert pod.gone
        assert pods.pod_state(pod.object) == "SIGKILL"

    run(test)


def test_end_of_a_container_ends_all_its_processes(tmp_path: Path) -> None:
    async def test() -> None:
        hide = f"subprocess.Popen([sys.executable, '-c', {DEAF!r}], start_new_session=True)"
        first = f"os.path.getsize('log-0') or ({hide}, print('hidden', flush=True))"
        pod = make(tmp_path, sys.executable, "-c", f"import os, subprocess, sys, time; {first}; time.sleep(600)")
        await wait_until_async("two processes", lambda: len(list(processes.tagged(pod.tag))) == 2)
        assert pod.pid is not None
        os.kill(pod.pid, signal.SIGKILL)
        await wait_until_async("one restart", lambda: pods.container_status(pod.object)["restartCount"] == 1)
        await wait_until_async(
            "the pod's process alone", lambda: [pid for pid, _ in processes.tagged(pod.tag)] == [pod.pid]
        )
        await pod.lose()
        assert list(processes.tagged(pod.tag)) == []

    run(test)


def test_unstartable_program_is_an_error_in_one_line(tmp_path: Path) -> None:
    async def test() -> None:
        pod = make(tmp_path, "/no/such/program")
        with pytest.raises(LocalRunError, match=r"can't start pod j-0: .*No such file"):
            await wait_until_async("the end of the pod", lambda: pod.gone)

    run(test)
