"""Bursts of output: a slow log blocks its workers and loses nothing; a hung log blocks them once, and shortly."""

from __future__ import annotations

import subprocess
import sys

from dtj_agent.files.log_file import Valve
from dtj_agent.workers.supervisor import CHUNK
from dtj_agent.workers.worker_output import WorkerOutput
from dtj_contract import names


def test_log_with_room_never_blocks_workers() -> None:
    valve = Valve(1.0)
    assert all(valve.is_open(False, now / 10) for now in range(100))


def test_log_that_drains_now_and_then_blocks_while_it_is_full() -> None:
    valve = Valve(1.0)
    answers = [valve.is_open(now % 9 != 0, now / 10) for now in range(100)]
    assert [now for now, is_open in enumerate(answers) if is_open] == [now for now in range(100) if now % 9 == 0]


def test_hung_log_blocks_for_a_second_and_not_again_until_it_drained() -> None:
    valve = Valve(1.0)
    assert [valve.is_open(True, now / 4) for now in range(8)] == [False] * 4 + [True] * 4
    assert valve.is_open(False, 2.0)
    assert not valve.is_open(True, 2.1)


def test_one_read_of_the_shortest_lines_fits_above_a_full_backlog() -> None:
    prefixed = WorkerOutput("[rank 65535] ").feed(b"\n" * CHUNK)
    assert names.FULL_LOG_BACKLOG_BYTES + len(prefixed) < 2 * names.MAX_LOG_BACKLOG_BYTES
    usual = WorkerOutput("[rank 0] ").feed(b"\n" * CHUNK)
    assert names.FULL_LOG_BACKLOG_BYTES + len(usual) < names.MAX_LOG_BACKLOG_BYTES


# The supervisor reaps every child, so it has a process of its own here.
BURST = """
import os, sys, time
from dtj_agent.files.log_file import OutputSink, Valve, LogWriter
from dtj_agent.net.loop import Loop
from dtj_agent.workers.supervisor import Supervisor

class Slow(OutputSink):
    got = 0
    def write(self, data):
        time.sleep(0.02)
        assert b"were dropped" not in data
        self.got += data.count(b"\\n")

loop, sink = Loop(), Slow()
writer, valve = LogWriter(sink, print), Valve(600.0)
workers = Supervisor(loop, is_init=True)
workers.on_output = writer.write
workers.has_room = lambda: valve.is_open(writer.is_full, loop.clock())
left = [0, 1]
def ended(exits):
    for worker in exits:
        assert worker.exit_code == 0 and worker.log_tail.endswith("99999\\n"), worker
        left.remove(worker.rank)
workers.on_exit = ended
code = "import sys; [sys.stdout.write('line %80d\\\\n' % n) for n in range(100000)]"
workers.spawn([sys.executable, "-c", code], {rank: dict(os.environ) for rank in (0, 1)})
while left:
    loop.run_once()
assert writer.flush(60)
print(sink.got)
"""


def test_burst_on_a_slow_log_loses_no_line() -> None:
    """17 MB of two workers at once, far more than a backlog holds."""
    done = subprocess.run([sys.executable, "-c", BURST], capture_output=True, text=True, timeout=200)
    assert (done.stdout.strip(), done.returncode) == ("200000", 0), done.stderr
