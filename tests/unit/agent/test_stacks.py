"""Stack dumps: real processes, real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import dedent

import pytest

from dtj_agent.workers import stacks
from dtj_agent.workers.stacks import StackFiles
from dtj_contract import stack_dump
from tests.lib.waiting import wait_until

PATIENCE = 90.0
PRELUDE = """
import os, sys, threading, time
from dtj_contract import stack_dump
assert stack_dump.register(sys.argv[1])
def ready():
    print("ready", flush=True)
"""
SLEEP = """
def user_function():
    ready()
    time.sleep(600)
user_function()
"""


@contextmanager
def worker(body: str, path: str, prelude: str = PRELUDE, wrapper: str = "") -> Iterator[subprocess.Popen[str]]:
    """Starts a worker, which prints "ready" where the test wants it to stand."""
    command = [sys.executable, "-c", prelude + dedent(body), path]
    if wrapper:
        command = ["bash", "-c", wrapper, "bash", *command]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


@pytest.fixture
def files(tmp_path: Path) -> StackFiles:
    made = StackFiles(str(tmp_path / "stacks"))
    made.begin(range(4))
    return made


def dumped(files: StackFiles, workers: dict[int, int]) -> dict[int, str]:
    """Returns the stacks of all workers, once they are complete."""
    files.request(workers)

    def is_complete() -> bool:
        return len(files.read()) == len(workers) and not files.pending()

    wait_until("the stacks are written", is_complete, timeout=PATIENCE)
    return files.read()


PLACES = {
    "time.sleep": (SLEEP, "user_function"),
    "a loop in C": (
        """
        def user_function():
            ready()
            sum(range(10**14))
        user_function()
        """,
        "user_function",
    ),
    "a lock": (
        """
        def user_function():
            lock = threading.Lock()
            lock.acquire()
            ready()
            lock.acquire()
        user_function()
        """,
        "user_function",
    ),
    "a read of a pipe": (
        """
        def user_function():
            r, w = os.pipe()
            ready()
            os.read(r, 1)
        user_function()
        """,
        "user_function",
    ),
    "several threads": (
        """
        def other_thread():
            ready()
            time.sleep(600)
        threading.Thread(target=other_thread).start()
        time.sleep(600)
        """,
        "other_thread",
    ),
}


@pytest.mark.parametrize(("body", "function"), PLACES.values(), ids=PLACES)
def test_dump_shows_where_each_thread_stands(files: StackFiles, body: str, function: str) -> None:
    with worker(body, files.path(2)) as process:
        stack = dumped(files, {2: process.pid})[2]
        assert f"in {function}" in stack
        assert "pid" not in stack
        assert "in <module>" in stack, "the main thread"
        assert process.poll() is None
        again = dumped(files, {2: process.pid})[2]
        assert len(again) < 2 * len(stack), "a second dump replaces the first"


def test_process_that_has_not_registered_gets_no_signal(files: StackFiles) -> None:
    bare = "import os, sys, time\ndef ready():\n    print('ready', flush=True)\n"
    with worker(SLEEP, files.path(0), prelude=bare) as process:
        files.request({0: process.pid})
        assert (files.read(), files.pending(), process.poll()) == ({}, [], None)
        # Its file is there, but it has lost the handler, as a process does that calls exec.
        Path(files.path(0)).write_bytes(b"pid %d\n" % process.pid)
        files.request({0: process.pid})
        assert (files.read(), files.pending(), process.poll()) == ({}, [], None)
        os.kill(process.pid, stack_dump.SIGNAL)
        assert process.wait(PATIENCE) == -stack_dump.SIGNAL, "which is what the check prevents"


def test_process_of_another_worker_gets_no_signal(files: StackFiles) -> None:
    with worker(SLEEP, files.path(0)) as stranger, worker(SLEEP, files.path(1)) as own:
        files.request({0: own.pid})
        assert files.read() == {}
        assert "in user_function" in dumped(files, {0: stranger.pid, 1: own.pid})[0]


@pytest.mark.parametrize("wrapper", ['"$@"; true', '(trap "" TERM; "$@"); true'], ids=["bash", "two of them"])
def test_interpreter_below_a_wrapper_dumps_its_stack(files: StackFiles, wrapper: str) -> None:
    with worker(SLEEP, files.path(0), wrapper=wrapper) as process:
        assert "in user_function" in dumped(files, {0: process.pid})[0]


def test_stopped_process_blocks_nothing_and_is_named(files: StackFiles) -> None:
    with worker(SLEEP, files.path(0)) as stopped, worker(SLEEP, files.path(1)) as other:
        os.kill(stopped.pid, signal.SIGSTOP)
        pids = {0: stopped.pid, 1: other.pid}
        wait_until("it is stopped", lambda: files.states(pids) == {0: "stopped"}, timeout=PATIENCE)
        files.request(pids)
        wait_until("the other one has dumped", lambda: 1 in files.read(), timeout=PATIENCE)
        assert 0 not in files.read()
        assert files.pending() == [0]
        os.kill(stopped.pid, signal.SIGCONT)
        wait_until("it dumps when it runs again", lambda: 0 in files.read(), timeout=PATIENCE)


def test_dump_is_bounded(files: StackFiles) -> None:
    body = """
    def user_function(depth):
        if depth:
            return user_function(depth - 1)
        threads.append(1)
        time.sleep(600)
    threads = []
    sys.setrecursionlimit(5000)
    for _ in range(40):
        threading.Thread(target=user_function, args=(100,), daemon=True).start()
    while len(threads) < 40:
        time.sleep(0.01)
    ready()
    time.sleep(600)
    """
    with worker(body, files.path(0)) as process:
        files.request({0: process.pid})

        def is_complete() -> bool:
            return not files.pending() and os.path.getsize(files.path(0)) > 2 * stacks.MAX_STACK_BYTES

        wait_until("more than the bound is written", is_complete, timeout=PATIENCE)
        assert len(files.read()[0].encode()) == stacks.MAX_STACK_BYTES


def test_process_that_ended_is_left_out(files: StackFiles) -> None:
    with worker(SLEEP, files.path(0)) as process:
        process.kill()
        process.wait()
        files.request({0: process.pid, 1: process.pid})
        assert (files.read(), files.pending(), files.states({0: process.pid})) == ({}, [], {})
