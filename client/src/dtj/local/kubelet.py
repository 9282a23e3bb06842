"""A local pod, whose container is a process that is restarted whenever it ends.

A kubelet does the same for the pods of a StatefulSet.
"""

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

FIRST_BACKOFF_SECONDS = 0.1  # kubelet: 10 s, on a shared node
LAST_BACKOFF_SECONDS = 5.0
# After such a long run the back-off starts over, as with a kubelet.
RESET_BACKOFF_SECONDS = 600.0
KILL_AGAIN_SECONDS = 0.05


def backoff_after(backoff: float, ran_seconds: float) -> float:
    """Returns the pause before the next start of a container that ran for `ran_seconds`.

    `backoff` is the pause after a short run.
    """
    return FIRST_BACKOFF_SECONDS if ran_seconds >= RESET_BACKOFF_SECONDS else backoff


class LocalPod:
    """A pod object and the processes behind it.

    `changed` is called after every change of `object`. Times come from `now`. A container of whose pod `is_final`
    holds after its end is not restarted.
    """

    def __init__(
        self,
        pod: Object,
        container: LocalContainer,
        tag: str,
        *,
        now: Callable[[], datetime],
        changed: Callable[[], None],
        is_final: Callable[[Object], bool] = lambda _: False,
    ) -> None:
        self._is_final = is_final
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
        """Process id of the agent, while it runs."""
        return self._process.pid if self._process else None

    @property
    def gone(self) -> bool:
        """Whether all processes have ended and none will be started.

        Raises the error that broke the pod.
        """
        if self._life.done():
            self._life.result()
            return True
        return False

    async def stop(self, grace_seconds: float, *, is_signalled: bool = False) -> None:
        """Stops the pod: SIGTERM to the agent, then SIGKILL to all its processes after `grace_seconds`.

        With `is_signalled`, the agent has got a SIGTERM already: a second one would kill its workers at once.
        """
        self._ending.set()
        self._changed()
        if not is_signalled:
            self._terminate()
        done, _ = await asyncio.wait({self._life}, timeout=grace_seconds)
        if not done:
            await self.lose()

    async def lose(self) -> None:
        """Kills every process of the pod without notice, like the loss of a node.

        Raises LocalRunError.
        """
        self._ending.set()
        deadline = time.monotonic() + processes.KILL_DEADLINE_SECONDS
        while not self._life.done():
            if time.monotonic() > deadline:
                raise LocalRunError(f"pod {self.object['metadata']['name']} outlives SIGKILL")
            processes.kill_all(self.tag)
            # Repeat, because a process in exec(2) has no environment for a moment, and so no tag.
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
            if self._is_final(self.object):
                break
            if backoff > FIRST_BACKOFF_SECONDS and not self._ending.is_set():
                pods.set_backing_off(self.object)
            self._changed()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff):
                    await self._ending.wait()
            backoff = min(2 * backoff, LAST_BACKOFF_SECONDS)
        self._changed()

    async def _run_container(self) -> int:
        """Runs the container once. Returns its exit code as Python's (negative: a signal)."""
        container = self._container
        try:
            for folder in container.folders:
                folder.mkdir(parents=True, exist_ok=True)
            container.termination_log.write_bytes(b"")  # each container starts with an empty one
            with container.log.open("ab") if container.log else contextlib.nullcontext() as log:
                # The container gets its own session, so that Ctrl-C in the terminal reaches only
                # dtj, which stops the pod gracefully.
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
        if self._ending.is_set():  # stopped while it was starting
            self._terminate()
        try:
            return await process.wait()
        finally:
            self._process = None
            processes.kill_all(self.tag)  # no process outlives its container

    def _termination_message(self) -> str:
        raw = self._container.termination_log.read_bytes()
        return raw[: names.TERMINATION_LOG_BYTES].decode(errors="replace")
