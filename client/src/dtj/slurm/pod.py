"""`python -m dtj.slurm.pod`: one pod of a job, which srun starts on each node of an allocation.

The pod takes the place of a kubelet: it starts the agent, and starts it again if it crashes. The exit code
of the job's outcome is in a file that the script reads. The pod itself ends with 0 whatever the outcome: srun
terminates the other tasks when one ends with another code, and they may still be saving.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from dtj import jobfile
from dtj.errors import DtjError, InputError
from dtj.local import container, pods, processes, shared_memory
from dtj.local.command import admitted
from dtj.local.kubelet import LocalPod
from dtj.slurm.allocation import ENV_JOB, Allocation, fit
from dtj_agent import build
from dtj_contract import names
from dtj_core.plan import children
from dtj_core.plan.job import Job
from dtj_core.plan.model import Object, Settings

BAD_INPUT = 2
# The script writes it to the standard input of srun, which hands it to each task. A signal would reach the
# workers too, and with them the processes that load their data.
STOP = "stop"
# A network file system may show a new file late.
SHARED_SECONDS = 60.0


def main() -> int:
    """Runs the pod of this node to its end, and returns the exit code."""
    try:
        processes.require_linux()
        allocation = Allocation.read(os.environ)
        with tempfile.TemporaryDirectory(prefix=f"dtj-{allocation.job_id}-") as scratch:
            asyncio.run(_run(allocation, Path(scratch)))
        return 0
    except DtjError as error:
        for line in str(error).splitlines():
            print(f"dtj: {line}", file=sys.stderr)
        return error.exit_code


async def _run(allocation: Allocation, scratch: Path) -> None:
    await _check_shared(allocation)
    pod, process, tag = _prepare(allocation, scratch)
    changed, stop, signalled = asyncio.Event(), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, signalled.set)
    threading.Thread(target=_await_stop, args=(loop, stop), daemon=True).start()
    running = LocalPod(pod, process, tag, now=lambda: datetime.now(UTC), changed=changed.set, is_final=_is_final)
    try:
        while not (running.gone or stop.is_set() or signalled.is_set()):
            changed.clear()
            await _any(changed, stop, signalled)
        heard = signalled.is_set() and allocation.signals_reach_agents
        await running.stop(pod["spec"]["terminationGracePeriodSeconds"], is_signalled=heard)
    finally:
        processes.kill_all(tag)
        shared_memory.remove(allocation.run)
    ended = pods.container_status(pod)["state"].get("terminated") or {}
    if _has_outcome(ended.get("message", "")) or ended.get("exitCode") == BAD_INPUT:
        _write_result(allocation.marker, ended["exitCode"])


def _write_result(marker: Path, code: int) -> None:
    """Writes the job's exit code. All pods write the same."""
    aside = marker.with_name(f"{marker.name}-{uuid.uuid4()}")
    aside.write_text(f"{code}\n")
    aside.replace(marker)


def _prepare(allocation: Allocation, scratch: Path) -> tuple[Object, container.LocalContainer, str]:
    """Returns the pod of this node, its process, and the tag of all its processes."""
    written = jobfile.the_only(jobfile.parse_documents(os.environ.get(ENV_JOB, "")), ENV_JOB)
    model = jobfile.check(written, ENV_JOB)
    job = admitted(fit(written, model, len(allocation.nodes)))
    job["metadata"]["uid"] = allocation.run
    host = container.HostEnvironment(
        job_uid=allocation.run,
        python=sys.executable,
        node=allocation.node,
        run_dir=scratch,
        scratch_dir=scratch,
        volumes_dir=allocation.volumes,
        working_dir=Path.cwd(),
        environment=dict(os.environ),
        address=allocation.node,
    )
    key = scratch / "secret" / names.SECRET_KEY
    key.parent.mkdir(mode=0o700)
    key.write_text(allocation.key)
    settings = Settings(agent_image="", master_key=allocation.key.encode(), agent_port=allocation.port)
    stateful_set = children.stateful_set(Job.from_object(job), settings, 1)
    stateful_set["metadata"]["uid"] = allocation.run
    now = datetime.now(UTC)
    pod = pods.new_pod(stateful_set, allocation.ordinal, uid=str(uuid.uuid4()), node=allocation.node, now=now)
    own = {
        names.ENV_PEERS: allocation.peers,
        names.ENV_LISTEN: f"0.0.0.0:{allocation.port}",
        # Not every proctrack plugin of Slurm finds the agent of a pod that was killed.
        names.ENV_DIE_WITH_PARENT: str(os.getpid()),
    }
    process = container.process(pod, host, own)
    if allocation.container:
        process = replace(process, argv=_in_container(allocation, process.argv, scratch))
    return pod, process, container.pod_tag(pod, host)


def _in_container(allocation: Allocation, argv: tuple[str, ...], scratch: Path) -> tuple[str, ...]:
    """Returns the command with the container's own Python, and with the agent as the file that an image needs."""
    agent = scratch / "agent.pyz"
    build.build(str(agent))
    python, _, _, separator, *worker = argv
    worker = ["python3" if part == python else part for part in worker]
    return (*allocation.container, "python3", str(agent), separator, *worker)


async def _check_shared(allocation: Allocation) -> None:
    """Raises InputError unless this node sees the file that the script has made on the first node."""
    deadline = time.monotonic() + SHARED_SECONDS
    while not allocation.marker.exists():
        if time.monotonic() > deadline:
            raise InputError(
                f"node {allocation.node} does not see {allocation.marker}: set VOLUMES in the script to a folder that"
                " all nodes share"
            )
        await asyncio.sleep(0.5)


def _is_final(pod: Object) -> bool:
    """Returns whether the agent has ended for good: with an outcome, by SIGTERM, or because its input is bad."""
    ended = pods.container_status(pod)["state"].get("terminated")
    if ended is None:
        return False
    return ended["exitCode"] in (BAD_INPUT, names.EXIT_TERMINATED) or _has_outcome(ended.get("message", ""))


def _has_outcome(message: str) -> bool:
    try:
        found = json.loads(message)
    except ValueError:
        return False
    return isinstance(found, dict) and "result" in found


def _await_stop(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Waits in a thread of its own for the script's request to stop."""
    for line in sys.stdin:
        if line.strip() == STOP:
            loop.call_soon_threadsafe(stop.set)


async def _any(*events: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


if __name__ == "__main__":
    # The thread that reads standard input may never return.
    code = main()
    sys.stdout.flush()
    os._exit(code)
