"""Files that an agent reads and writes: none may block it, none may be wrong."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dtj_agent.files import state_file
from dtj_agent.files.lease_file import raise_lease
from dtj_agent.files.log_file import LogWriter, OutputSink, RotatingFileSink
from dtj_agent.store.master_port import PortHolder
from dtj_agent.workers import cgroup
from dtj_agent.workers.worker_output import WorkerOutput
from dtj_contract import names
from tests.lib.waiting import TIMEOUT, wait_until


def test_state_and_outcome_are_loaded_for_the_same_job_only(tmp_path: Path) -> None:
    folder = str(tmp_path / "state")
    assert state_file.load_state(folder, "uid") == {}
    state_file.save_state(folder, {"uid": "uid", "attempt": 3})
    state_file.save_outcome(folder, {"uid": "uid", "result": "Succeeded"})
    assert state_file.load_state(folder, "uid")["attempt"] == 3
    assert state_file.load_outcome(folder, "uid") == {"uid": "uid", "result": "Succeeded"}
    assert (state_file.load_state(folder, "other"), state_file.load_outcome(folder, "other")) == ({}, None)
    (tmp_path / "state" / names.STATE_FILE).write_text("{")
    assert state_file.load_state(folder, "uid") == {}


def test_state_shows_that_the_node_has_restarted_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, boot_id = str(tmp_path / "state"), tmp_path / "boot_id"
    state_file.save_state(folder, {"uid": "uid"})
    assert not state_file.load_state(folder, "uid")["rebooted"], "the same boot of this machine"
    boot_id.write_text("7f4b8b2e-0000-4000-8000-000000000000\n")
    monkeypatch.setattr(state_file, "BOOT_ID", str(boot_id))
    assert state_file.load_state(folder, "uid")["rebooted"]
    (tmp_path / "state" / names.STATE_FILE).write_text('{"uid": "uid"}')
    assert not state_file.load_state(folder, "uid")["rebooted"], "an agent of an earlier version saved no boot"


def test_failed_write_of_the_termination_message_returns_why(tmp_path: Path) -> None:
    assert state_file.write_termination_message(str(tmp_path / "t"), b"x") is None
    assert "No such file" in (state_file.write_termination_message(str(tmp_path / "no" / "t"), b"x") or "")


def test_lease_only_grows(tmp_path: Path) -> None:
    folder = str(tmp_path / "ns" / "job")
    assert raise_lease(folder, 1) is None
    assert (tmp_path / "ns" / "job" / "attempt").read_text() == "1\n"
    assert raise_lease(folder, 5) is None
    assert raise_lease(folder, 5) == 5
    assert raise_lease(folder, 4) == 5
    assert os.listdir(folder) == ["attempt"]


def test_lines_are_prefixed_whole_and_long_lines_are_split() -> None:
    lines = WorkerOutput("[rank 7] ")
    assert lines.feed(b"one\ntw") == b"[rank 7] one\n"
    assert lines.feed(b"o\n\n") == b"[rank 7] two\n[rank 7] \n"
    long = lines.feed(b"x" * (names.MAX_LINE_BYTES + 10))
    assert long == b"[rank 7] " + b"x" * names.MAX_LINE_BYTES + b"\n"
    assert lines.end() == b"[rank 7] xxxxxxxxxx\n"
    assert lines.end() == b""


def test_tail_is_bounded_and_begins_with_a_whole_line() -> None:
    lines = WorkerOutput("")
    lines.feed("\n".join(f"line {n} é" for n in range(1000)).encode())
    assert len(lines.tail.encode()) <= names.LOG_TAIL_BYTES
    assert lines.tail.startswith("line ")
    assert lines.tail.endswith("line 999 é")
    lines.feed(b"\xff" * 5000)
    assert len(lines.tail.encode()) <= names.LOG_TAIL_BYTES


class Stuck(OutputSink):
    """A volume that does not answer."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.got = b""

    def write(self, data: bytes) -> None:
        self.go.wait(TIMEOUT)
        self.got += data


def test_hung_volume_never_blocks_and_dropped_bytes_are_counted() -> None:
    sink = Stuck()
    writer = LogWriter(sink, lambda text: None, limit=1000)
    for n in range(100):
        writer.write(b"%099d\n" % n)
    assert not writer.flush(0.05)
    sink.go.set()
    assert writer.flush(TIMEOUT)
    writer.write(b"after\n")
    assert writer.flush(TIMEOUT)
    assert sink.got.startswith(b"0" * 99 + b"\n")
    assert b"bytes of output were dropped here" in sink.got
    assert sink.got.endswith((b"after\n", b"keep up\n"))
    assert len(sink.got) < 3000


def test_failing_volume_is_reported_once_and_tried_again(tmp_path: Path) -> None:
    reported: list[str] = []
    time = [0.0]
    (tmp_path / "logs").write_text("a file where the folder should be")
    writer = LogWriter(RotatingFileSink(str(tmp_path / "logs" / "j-0.log"), clock=lambda: time[0]), reported.append)
    for _ in range(3):
        writer.write(b"lost\n")
        assert writer.flush(TIMEOUT)
    assert len(reported) == 1
    (tmp_path / "logs").unlink()
    time[0] = 31.0
    writer.write(b"kept\n")
    assert writer.flush(TIMEOUT)
    assert (tmp_path / "logs" / "j-0.log").read_bytes() == b"kept\n"


def test_log_rotates_once_and_continues_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "j-0.log"
    for n in range(3):
        log = RotatingFileSink(str(path), limit=100)
        log.write(b"%d" % n * 60)
    assert path.read_bytes() == b"2" * 60
    assert (tmp_path / "logs" / "j-0.log.1").read_bytes() == b"1" * 60
    assert len(list((tmp_path / "logs").iterdir())) == 2


CGROUPS = {
    "version 2 in its own namespace": ("0::/\n", {"memory.events": "low 0\noom 3\noom_kill 2\n"}, 2),
    "version 2 below": ("0::/pod/c\n", {"pod/c/memory.events": "oom_kill 4\n", "memory.events": "oom_kill 9\n"}, 4),
    "version 1": (
        "4:memory:/pod/c\n",
        {"memory/pod/c/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"},
        1,
    ),
    "version 1 as the container sees it": ("4:cpu,memory:/pod/c\n", {"memory/memory.oom_control": "oom_kill 5\n"}, 5),
    "both, memory in version 1": ("4:memory:/c\n0::/c\n", {"memory/c/memory.oom_control": "oom_kill 6\n"}, 6),
    "an old kernel": ("4:memory:/c\n", {"memory/c/memory.oom_control": "under_oom 0\n"}, 0),
    "nothing": ("", {}, 0),
}


@pytest.mark.parametrize(("own", "files", "count"), CGROUPS.values(), ids=CGROUPS)
def test_oom_counter_of_the_kernel_is_found(tmp_path: Path, own: str, files: dict[str, str], count: int) -> None:
    (tmp_path / "self").write_text(own)
    for name, text in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(text)
    assert cgroup.oom_kills(str(tmp_path / "fs"), str(tmp_path / "self")) == count


def test_reading_the_oom_counter_of_this_machine_raises_nothing() -> None:
    assert cgroup.oom_kills() >= 0


def test_master_port_is_new_held_and_not_ephemeral() -> None:
    ports = PortHolder("127.0.0.1")
    first = ports.renew()
    assert names.MASTER_PORT_FLOOR <= first < 65536
    with socket.socket() as other, pytest.raises(OSError):
        other.bind(("127.0.0.1", first))
    assert ports.renew() != first
    second = ports.port
    ports.release()
    wait_until("the port to be free", lambda: _can_bind(second))


def _can_bind(port: int) -> bool:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", port))
        return True


RACE = """
import sys
from dtj_agent.files.lease_file import raise_lease
folder, attempts = sys.argv[1], int(sys.argv[2])
sys.stdin.readline()  # both begin at once
for attempt in range(1, attempts + 1):
    if raise_lease(folder, attempt) is None:
        print(attempt, flush=True)
"""


def test_two_coordinators_at_once_never_get_the_same_lease(tmp_path: Path) -> None:
    """A replaced pod 0 that is alive has the same host name, process number and next attempt as its successor."""
    command = [sys.executable, "-c", RACE, str(tmp_path), "100"]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for each in both:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    won = [[int(line) for line in each.communicate(timeout=300)[0].split()] for each in both]
    assert [each.returncode for each in both] == [0, 0], "neither fails because of the other's file"
    assert not set(won[0]) & set(won[1]), "an attempt has one coordinator"
    assert (tmp_path / names.LEASE_FILE).read_text() == "100\n"
    assert [path.name for path in tmp_path.iterdir()] == [names.LEASE_FILE], "nothing is left aside"


def test_lease_number_of_a_coordinator_that_died_writing_it_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "attempt.3").touch()
    assert raise_lease(str(tmp_path), 3) == 3
    assert raise_lease(str(tmp_path), 4) is None
    assert [path.name for path in tmp_path.iterdir()] == [names.LEASE_FILE], "and swept up"
    (tmp_path / "attempt.9").touch()
    assert raise_lease(str(tmp_path), 5) == 9, "it yields to a greater number that is being written"
    assert (tmp_path / names.LEASE_FILE).read_text() == "4\n"


def test_slow_coordinator_does_not_overwrite_a_later_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator is stopped just before its rename, and meanwhile another one writes the next number."""
    rename = os.replace

    def late(source: str, target: str) -> None:
        monkeypatch.setattr(os, "replace", rename)
        assert raise_lease(str(tmp_path), 6) is None
        rename(source, target)

    monkeypatch.setattr(os, "replace", late)
    assert raise_lease(str(tmp_path), 5) == 5, "it does not get the lease"
    assert (tmp_path / names.LEASE_FILE).read_text() == "6\n"
