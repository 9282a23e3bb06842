"""One local pod: its container is a process, started again whenever it ends, as a kubelet does for a StatefulSet."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from datetime import datetime

from dtj.errors import LocalRunError
from dtj.local import pods, processes
from dtj.local.container import LocalContainer
from dtj_contract import names
from dtj_core.plan.model import Object

FIRST_BACKOFF_SECONDS = 0.1  # a kubelet waits 10 s and more; here nobody shares the node
LAST_BACKOFF_SECONDS = 5.0
RESET_BACKOFF_SECONDS = 600.0  # a container that ran so long is started again as if it had never ended, as by a kubelet
KILL_AGAIN_SECONDS = 0.05


def backoff_after(backoff: float, ran_seconds: float) -> float:
    """Returns the pause before a container that ran for `ran_seconds` starts again; `backoff` was due if it had ended soon."""
    return FIRST_BACKOFF_SECONDS if ran_seconds >= RESET_BACKOFF_SECONDS else backoff


class LocalPod:
    """A pod object and the processes that make it true.

    `changed` is called after every change of `object`. Times come from `now`.
    """

    def __init__(
        self, pod: Object, container: LocalContainer, tag: str, *, now: Callable[[], datetime], changed: Callable[[], None]
    ) -> None:
        self.object = pod
        self.tag = tag
        self._process: asyncio.subprocess.Process | None = None
        self._container = container
        self._now = now
        self._changed = changed
        self._ending = asyncio.Event()
        self._life = asyncio.create_task(self._live(), name=f"pod {pod['metadata']['name']}")

    @property
    def pid(self) -> int | None:
        """The agent's process, while there is one."""
        return self._process.pid if self._process else None

    @property
    def gone(self) -> bool:
        """All its processes have ended and none will be started. Raises what broke it, if something did."""
        if self._life.done():
            self._life.result()
            return True
        return False

    async def stop(self, grace_seconds: float) -> None:
        """End the pod: SIGTERM to the agent, SIGKILL to all that is left after `grace_seconds`."""
        self._ending.set()
        self._changed()
        self._terminate()
        done, _ = await asyncio.wait({self._life}, timeout=grace_seconds)
        if not done:
            await self.lose()

    async def lose(self) -> None:
        """The pod's end without any notice, as with its node: SIGKILL to every process of it. Raises LocalRunError."""
        self._ending.set()
        deadline = time.monotonic() + processes.KILL_DEADLINE_SECONDS
        while not self._life.done():
            if time.monotonic() > deadline:
                raise LocalRunError(f"pod {self.object['metadata']['name']} outlives SIGKILL")
            processes.kill_all(self.tag)
            # Again: for a moment in exec(2) a process has no environment, and so no tag.
            await asyncio.wait({self._life}, timeout=KILL_AGAIN_SECONDS)

    def _terminate(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    async def _live(self) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        while not self._ending.is_set():
            began = time.monotonic()
            code = await self._run_container()
            backoff = backoff_after(backoff, time.monotonic() - began)
            pods.set_terminated(self.object, code, self._termination_message(), self._now())
            if backoff > FIRST_BACKOFF_SECONDS and not self._ending.is_set():
                pods.set_backing_off(self.object)
            self._changed()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), backoff)
            backoff = min(2 * backoff, LAST_BACKOFF_SECONDS)
        self._changed()

    async def _run_container(self) -> int:
        """One life of the container; its exit code as Python's (negative: a signal)."""
        container = self._container
        try:
            for folder in container.folders:
                folder.mkdir(parents=True, exist_ok=True)
            container.termination_log.write_bytes(b"")  # a new container has a new one
            with container.log.open("ab") as log:
                # A session of its own: Ctrl-C in the terminal is for dtj, which ends the pod in good order.
                self._process = process = await asyncio.create_subprocess_exec(
                    *container.argv,
                    env=dict(container.environment),
                    cwd=container.working_dir,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=asyncio.subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise LocalRunError(f"can't start pod {self.object['metadata']['name']}: {error}") from error
        pods.set_running(self.object, self._now())
        self._changed()
        if self._ending.is_set():  # asked to end while it was being started
            self._terminate()
        try:
            return await process.wait()
        finally:
            self._process = None
            processes.kill_all(self.tag)  # a container ends with all that ran in it

    def _termination_message(self) -> str:
        raw = self._container.termination_log.read_bytes()
        return raw[: names.TERMINATION_LOG_BYTES].decode(errors="replace")
