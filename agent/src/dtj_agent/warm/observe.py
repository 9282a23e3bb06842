"""Observes a forked worker's training for the agent, without any import in the user's script.

torch calls a global hook after each optimizer step. The hook counts per optimizer, and the greatest
count is the worker's: a GAN has two optimizers, and ZeroRedundancyOptimizer calls an inner one, but
neither does two steps in one. The backward passes of a script that creates no torch optimizer are
counted instead. The count stands in a page of memory that the agent reads (dtj_contract.step_page).
Nothing here raises into the script: a worker that can't be observed still
trains.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import socket
import sys
import time
import weakref
from array import array
from typing import Any, Callable, Dict, Optional

from dtj_agent.warm.backward_passes import BackwardPasses
from dtj_contract import stack_dump, step_page
from dtj_contract.step_page import FIRST_INDEX, LAST_INDEX, STEPS_INDEX

RETRY_SECONDS = 0.5  # after a report that the agent's socket had no room for

Hook = Callable[[Any, Any, Any], None]


def install(
    rank: int, attempt: int, report_socket: str, stack_file: str, on_first_step: Optional[Callable[[], None]] = None
) -> None:
    """Prepares the observation of this worker. Call this after the fork, before the user's code runs."""
    if stack_file:
        stack_dump.register(stack_file)
    optimizers = sys.modules.get("torch.optim.optimizer")
    if optimizers is None or not report_socket:
        return
    try:
        page = _Page(rank, attempt, report_socket)
        began = on_first_step or (lambda: None)
        passes = BackwardPasses(_on_pass(page, began))
        hook = _untraced(_counting_hook(page, began, passes.stop))
        optimizers.register_optimizer_step_post_hook(hook)
        page.announce()
        passes.start()
    except Exception:  # noqa: BLE001  # another version of torch, or a kernel without memfd
        return


class _Page:
    """This worker's page, and the reports that give it to the agent."""

    def __init__(self, rank: int, attempt: int, report_socket: str) -> None:
        self._fd = os.memfd_create("dtj-steps")
        # Written once, so that the memory exists: a page that can't be had is an error here, and
        # would be a SIGBUS in the hook.
        os.write(self._fd, step_page.MAGIC.ljust(step_page.SIZE, b"\0"))
        view = memoryview(mmap.mmap(self._fd, step_page.SIZE))
        self.ints, self.floats = view.cast("q"), view.cast("d")
        self._head = {"rank": rank, "attempt": attempt}
        self._path = report_socket
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self.retry_at = float("inf")
        os.register_at_fork(after_in_child=self._leave)

    def announce(self, steps: int = 0) -> None:
        """Sends the page and the count to the agent; never blocks, and is repeated later if there is no room."""
        report = json.dumps(dict(self._head, optimizerSteps=steps)).encode()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [self._fd]))]
        try:
            self._socket.sendmsg([report], rights, 0, self._path)
            self.retry_at = float("inf")
        except BlockingIOError:
            self.retry_at = time.monotonic() + RETRY_SECONDS
        except OSError:  # the script has closed all files, or the agent is gone
            self.retry_at = float("inf")

    def _leave(self) -> None:
        """Counts into private memory from now on: steps of the script's own children are not this rank's."""
        view = memoryview(bytearray(step_page.SIZE))
        self.ints, self.floats = view.cast("q"), view.cast("d")
        self.retry_at = float("inf")

    @property
    def rank(self) -> int:
        return self._head["rank"]


def _on_pass(page: _Page, on_first_step: Callable[[], None]) -> Callable[[int], None]:
    """Returns what is called with the count of backward passes after each that counts as a step."""
    clock = time.monotonic

    def on_pass(steps: int) -> None:
        now = page.floats[LAST_INDEX] = clock()
        is_first = not page.ints[STEPS_INDEX]
        page.ints[STEPS_INDEX] = steps
        if is_first:
            page.floats[FIRST_INDEX] = now
            page.announce(steps)
            _log_source(page.rank)
            on_first_step()
        if now > page.retry_at:
            page.announce(steps)

    return on_pass


def _log_source(rank: int) -> None:
    if rank == 0:
        with contextlib.suppress(Exception):  # the script may have closed its standard error
            why = "the script has created no torch optimizer"
            print("[agent] backward passes are counted as steps: %s" % why, file=sys.stderr, flush=True)


def _counting_hook(page: _Page, on_first_step: Callable[[], None], stop_passes: Callable[[], None]) -> Hook:
    """Returns the hook.

    The first step is reported at once, because a recovery ends there; the agent reads the later
    ones from the page. Counts are kept by id, which costs half of a WeakKeyDictionary, and go with their
    optimizer. `stop_passes` ends the count of backward passes; those that were counted before the first
    step remain, because a count that fell or stood still would look like a hang.
    """
    counts: Dict[int, int] = {}
    refs: Dict[int, "weakref.ref[Any]"] = {}
    most = passes = 0
    clock = time.monotonic

    def forget(key: int) -> None:
        counts.pop(key, None)
        refs.pop(key, None)

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal most, passes
        key = id(optimizer)
        count = counts.get(key, 0) + 1
        counts[key] = count
        now = page.floats[LAST_INDEX] = clock()
        if count == 1:
            refs[key] = weakref.ref(optimizer, lambda _: forget(key))
        if count > most:
            most = count
            if count == 1:
                stop_passes()
                passes = page.ints[STEPS_INDEX]
            page.ints[STEPS_INDEX] = passes + count
            if count == 1 and not passes:
                page.floats[FIRST_INDEX] = now
                page.announce(1)
                on_first_step()
        if now > page.retry_at:
            page.announce(passes + most)

    return hook


def _untraced(hook: Hook) -> Hook:
    """Returns `hook` as torch.compile calls it: never traced, and never compiled itself.

    torch.compiler.disable does the same, but it imports the whole compiler where no script has
    needed that yet, and it costs more than the hook in each step.
    """
    torch = sys.modules["torch"]
    try:
        compiler = torch._C._dynamo.eval_frame
        skip = compiler._FrameAction.SKIP
        compiler.set_code_exec_strategy(hook.__code__, compiler._FrameExecStrategy(skip, skip))
        hook._torchdynamo_disable = True  # type: ignore[attr-defined]
    except AttributeError:  # another version of torch
        return torch.compiler.disable(hook)  # type: ignore[no-any-return]
    return hook
