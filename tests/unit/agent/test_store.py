"""The rendezvous store, driven by the real torch.distributed.TCPStore client."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dtj_agent.build import build
from dtj_agent.net.loop import Loop
from dtj_agent.store.host import TRIES, StoreHost
from dtj_agent.store.key_store import MAX_VALUE_BYTES, KeyStore, ProtocolError, StoreClient
from dtj_agent.store.master_port import PortHolder
from tests.lib.waiting import wait_until
from tests.unit.agent.harness import is_alive, running

PROLOGUE = """
import datetime, json, os, sys, threading, time
from torch.distributed import TCPStore
PORT = int(sys.argv[1])
def connect(port=PORT, seconds=300.0):
    return TCPStore("127.0.0.1", port, is_master=False, timeout=datetime.timedelta(seconds=seconds))
def outcome(call):
    try:
        value = call()
    except Exception as error:
        return type(error).__name__
    return value.decode("latin-1") if isinstance(value, bytes) else value
"""


class Served:
    """A store host whose loop runs in this process, its server in another."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.spared: dict[int, Callable[[int], None]] = {}
        self.ended: list[int] = []
        self.failed: list[str] = []
        self.host = StoreHost(self.loop, os.environ, self.spared)
        self.host.on_ended = self.ended.append
        self.host.on_failed = self.failed.append
        self.ports = PortHolder("127.0.0.1")
        self.port = self.open()

    def open(self) -> int:
        port = self.ports.renew()
        bound = self.ports.take()
        assert bound is not None
        self.host.open(bound)
        return port

    def until(self, what: Callable[[], Any]) -> Any:
        def turn() -> Any:
            self.loop.later(0.01, lambda: None)
            self.loop.run_once()
            for pid in list(self.spared):  # as the agent's workers do
                if os.waitpid(pid, os.WNOHANG)[0]:
                    self.spared.pop(pid)(0)
            return what()

        return wait_until("the client", turn, timeout=300)

    def script(self, body: str, *arguments: str) -> Any:
        """Returns what a client script prints as its last line, as JSON."""
        with subprocess.Popen(
            [sys.executable, "-c", PROLOGUE + textwrap.dedent(body), str(self.port), *arguments],
            stdout=subprocess.PIPE,
            text=True,
        ) as client:
            assert client.stdout is not None
            try:
                self.until(lambda: client.poll() is not None)
                assert client.returncode == 0
                return json.loads(client.stdout.read().splitlines()[-1])
            finally:
                client.kill()


@pytest.fixture
def served() -> Iterator[Served]:
    serving = Served()
    yield serving
    serving.host.end()
    serving.until(lambda: not serving.spared)


OPERATIONS = """
def everything(store):
    yield store.set("a", "1"), store.get("a"), store.set("a", "2"), store.get("a")
    yield store.set("empty", ""), store.get("empty"), store.set("ü ☃", "x"), store.get("ü ☃")
    yield store.add("n", 5), store.add("n", -7), store.get("n"), store.add("n", 2**40)
    yield store.check(["a"]), store.check(["a", "nobody"]), store.check([])
    yield store.wait(["a", "n"]), outcome(lambda: store.wait(["nobody"], datetime.timedelta(milliseconds=50)))
    yield store.get("a")
    yield store.compare_set("a", "2", "3"), store.compare_set("a", "2", "4"), store.get("a")
    yield store.compare_set("new", "", "first"), store.compare_set("none", "expected", "x"), store.check(["none"])
    yield store.num_keys(), store.delete_key("new"), store.delete_key("new"), store.num_keys()
    yield store.append("log", "ab"), store.append("log", "cd"), store.get("log")
    yield store.multi_set(["m1", "m2"], ["v1", "v2"]), store.multi_get(["m2", "m1"])
    pushed = store.queue_len("q"), store.queue_push("q", "x"), store.queue_push("q", "y"), store.queue_len("q")
    yield *pushed, store.check(["q"])
    yield store.queue_pop("q"), store.queue_pop("q", False), store.queue_len("q"), store.check(["q"])
    yield outcome(lambda: store.queue_pop("q", False)),
    yield store.barrier("b", 1), store.get("b")
    yield sorted(store.list_keys()), store.has_extended_api(), store.clone().get("a")
def seen(store):
    return json.dumps(list(everything(store)), default=lambda value: value.decode("latin-1"))
"""


@pytest.mark.torch
def test_every_operation_answers_like_torchs_own_server(served: Served) -> None:
    body = (
        OPERATIONS
        + """
theirs = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(json.dumps([seen(connect()), seen(theirs)]))
"""
    )
    ours, expected = served.script(body)
    assert ours == expected


@pytest.mark.torch
def test_values_as_large_as_torch_allows_arrive_whole(served: Served) -> None:
    body = """
    store, other = connect(), connect()
    value = os.urandom(8 * 1024 * 1024 - 64)
    store.set("large", value)
    same = other.get("large") == value
    other.multi_set(["l1", "l2"], [value, value])
    print(json.dumps([same, store.multi_get(["l1", "l2"]) == [value, value]]))
    """
    assert served.script(body) == [True, True]


@pytest.mark.torch
def test_64_clients_meet_and_each_sees_the_others(served: Served) -> None:
    body = """
    def client(number):
        store = connect()
        store.set("from %d" % number, str(number))
        store.wait(["from %d" % other for other in range(64)])
        store.barrier("all", 64)
        seen[number] = [int(value) for value in store.multi_get(["from %d" % other for other in range(64)])]
        store.add("done", 1)
    seen = {}
    threads = [threading.Thread(target=client, args=(number,)) for number in range(64)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(json.dumps([all(seen[number] == list(range(64)) for number in range(64)), connect().add("done", 0)]))
    """
    assert served.script(body) == [True, 64]


@pytest.mark.torch
def test_connection_is_usable_after_a_wait_timed_out(served: Served) -> None:
    body = """
    store, other = connect(), connect()
    short = datetime.timedelta(milliseconds=30)
    failures = [outcome(lambda: store.wait(["late", "later"], short)) for _ in range(3)]
    other.set("late", "1")
    failures.append(outcome(lambda: store.wait(["late", "later"], short)))
    waiter = threading.Thread(target=lambda: store.wait(["late", "later"]))
    waiter.start()
    other.set("later", "2")
    waiter.join()
    popper = threading.Thread(target=lambda: failures.append(store.queue_pop("jobs").decode()))
    popper.start()
    other.queue_push("jobs", "work")
    popper.join()
    print(json.dumps([failures, store.get("later").decode()]))
    """
    assert served.script(body) == [["DistStoreError"] * 4 + ["work"], "2"]


@pytest.mark.torch
def test_closed_store_is_gone_and_the_next_is_empty_on_another_port(served: Served) -> None:
    old = served.port
    assert served.script("store = connect(); store.set('a', '1'); print(json.dumps(store.num_keys()))") == 1
    server = min(served.spared)
    served.port = served.open()
    assert served.port != old
    served.until(lambda: server not in served.spared)
    assert not is_alive(server)
    assert served.ended == []
    body = """
    print(json.dumps([connect().num_keys(), outcome(lambda: connect(int(sys.argv[2]), 1.0))]))
    """
    assert served.script(body, str(old)) == [0, "DistNetworkError"]


def test_server_that_dies_is_reported_and_its_port_rejects_connections(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port)):
        served.until(lambda: served.spared)
        os.kill(next(iter(served.spared)), 9)
        served.until(lambda: served.ended)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", served.port), timeout=60)


def test_store_that_cannot_start_is_retried_before_it_fails(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def refuse(*_: Any, **__: Any) -> int:
        tries.append(1)
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "posix_spawn", refuse)
    monkeypatch.setattr("dtj_agent.store.host.RETRY_SECONDS", 0.01)
    with socket.create_connection(("127.0.0.1", served.port)):
        served.until(lambda: served.failed)
    assert len(tries) == TRIES
    assert served.failed == ["can't start the rendezvous store: Resource temporarily unavailable"]


@pytest.mark.parametrize("dies", [False, True])
def test_next_store_is_served_by_a_process_that_has_waited(
    served: Served, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    monkeypatch.setattr("dtj_agent.store.host.AHEAD_SECONDS", 0.0)
    with socket.create_connection(("127.0.0.1", served.port)):
        _, ahead = served.until(lambda: len(served.spared) == 2 and list(served.spared))
    if dies:
        os.kill(ahead, 9)
        served.until(lambda: ahead not in served.spared)
    served.port = served.open()
    assert served.script("store = connect(); store.set('a', 'b'); print(json.dumps(store.num_keys()))") == 1
    assert (ahead in served.spared) is not dies
    assert served.ended == served.failed == []


def test_store_that_nobody_calls_costs_no_process(served: Served) -> None:
    served.loop.later(0.05, lambda: None)
    served.loop.run_once()
    assert served.spared == {}


# --- the protocol alone ---------------------------------------------------------------------------

HELLO = b"\0" + (0x3C85F7CE).to_bytes(4, "little")
HOSTILE = {
    "an HTTP request of another method": b"POST / HTTP/1.1\r\n\r\n",
    "a wrong magic number": b"\0abcd",
    "no greeting": b"\1" + bytes(8),
    "an unknown request": HELLO + b"\x63",
    "a key without end": HELLO + b"\1" + b"\xff" * 8,
    "a value without end": HELLO + b"\1" + bytes(8) + (MAX_VALUE_BYTES + 1).to_bytes(8, "little"),
    "too many keys": HELLO + b"\6" + b"\xff" * 8,
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_bytes_that_no_client_sends_are_rejected(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        StoreClient(KeyStore()).feed(data)


def test_add_to_a_text_is_rejected_and_sums_wrap_like_int64() -> None:
    store = KeyStore()
    client = StoreClient(store)
    add = b"\4" + (1).to_bytes(8, "little") + b"n"
    client.feed(HELLO + add + (2**63 - 1).to_bytes(8, "little") + add + (1).to_bytes(8, "little"))
    assert client.out[8:] == (2**63).to_bytes(8, "little")
    client.feed(b"\1" + (1).to_bytes(8, "little") + b"n" + (1).to_bytes(8, "little") + b"x")
    with pytest.raises(ProtocolError):
        client.feed(add + bytes(8))


def test_requests_may_arrive_byte_by_byte() -> None:
    client = StoreClient(KeyStore())
    text = (3).to_bytes(8, "little") + b"key"
    for byte in HELLO + b"\1" + text + text + b"\3" + text:
        client.feed(bytes([byte]))
    assert client.out == text


def test_client_that_disconnects_while_waiting_is_forgotten() -> None:
    store = KeyStore()
    gone, there = StoreClient(store), StoreClient(store)
    key = (1).to_bytes(8, "little") + b"k"
    for client in (gone, there):
        client.feed(HELLO + b"\6" + (1).to_bytes(8, "little") + key)
    store.forget(gone)
    StoreClient(store).feed(HELLO + b"\1" + key + key)
    assert store.woken == {there}
    assert (bytes(gone.out), bytes(there.out)) == (b"", b"\0")


# --- under agents ---------------------------------------------------------------------------------

BARE = """
import os, socket, struct, sys, time
rank, plan = int(os.environ["RANK"]), os.environ["PLAN"]
def text(data):
    return struct.pack("<Q", len(data)) + data
def ask(request, length):
    answer = b""
    sock.sendall(request)
    while len(answer) < length:
        part = sock.recv(length - len(answer))
        assert part, "the store is gone"
        answer += part
    return answer
sock = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
sock.sendall(b"\\0" + struct.pack("<I", 0x3C85F7CE))
seen = ask(b"\\4" + text(b"ranks of " + os.environ["DTJ_ATTEMPT"].encode()) + struct.pack("<q", 1), 8)
keys = struct.unpack("<q", ask(b"\\7", 8))[0]
assert keys == 1, "keys of another attempt: %d" % keys
if rank == 0:
    open(os.path.join(plan, "first"), "w").write(str(os.getpid()))
    sys.exit(0)
while not os.path.exists(os.path.join(plan, "first")):
    time.sleep(0.01)
first = int(open(os.path.join(plan, "first")).read() or 0)
while os.path.exists("/proc/%d" % first):
    time.sleep(0.01)
if os.environ["DTJ_ATTEMPT"] == "1":
    os.unlink(os.path.join(plan, "first"))
    sys.exit(1)
sock.close()
sock = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
sock.sendall(b"\\0" + struct.pack("<I", 0x3C85F7CE))
print("reached", ask(b"\\x0d" + b"ping", 4), flush=True)
"""


def test_each_attempt_has_its_own_store_which_outlives_rank_0(tmp_path: Path) -> None:
    """Agents as one file, as in a pod; the script has no torch."""
    build(str(tmp_path / "agent.pyz"))
    script = tmp_path / "bare.py"
    script.write_text(BARE)
    program = [sys.executable, str(tmp_path / "agent.pyz")]
    with running(tmp_path, 2, [sys.executable, "-u", str(script)], program) as group:
        assert [group.wait_exit(0, 120), group.wait_exit(1, 120)] == [0, 0], group.logs()
        assert "reached b'ping'" in group.log(1)
        assert group.outcome()["attempt"] == 2


LATE = """
import datetime, os, sys, time, torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=300))
dist.barrier()
if rank == 0:
    sys.exit(0)
store = dist.distributed_c10d._get_default_store()
# Rank 0's own last words: until its process has ended.
pid = int(open(os.path.join(os.environ["PLAN"], "first")).read())
while os.path.exists("/proc/%d" % pid):
    time.sleep(0.01)
group = dist.new_group([1, 2], use_local_synchronization=True)
total = torch.ones(1)
dist.all_reduce(total, group=group)
print("local sum %d" % total.item(), flush=True)
os._exit(0)
"""
TWICE = """
import datetime, os, torch
import torch.distributed as dist
for turn in range(2):
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=10 if turn else 300))  # a hang ends
    total = torch.ones(1)
    dist.all_reduce(total)
    print("turn %d sum %d" % (turn, total.item()), flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.torch
def test_process_group_is_created_after_rank_0_has_returned(tmp_path: Path) -> None:
    """Under torchrun the same script succeeds, because the store belongs to torchrun's agent."""
    script = tmp_path / "late.py"
    write = 'if rank == 0:\n    open(os.path.join(os.environ["PLAN"], "first"), "w").write(str(os.getpid()))\n'
    script.write_text(LATE.replace("dist.barrier()\n", write + "dist.barrier()\n"))
    environ = {"DTJ_PROCESSES_PER_POD": "3", "GLOO_SOCKET_IFNAME": "lo", "DTJ_MAX_RESTARTS": "0"}
    with running(tmp_path, 1, [sys.executable, "-u", str(script)], **environ) as group:
        assert group.wait_exit(0, 240) == 0, group.logs()
        assert group.log(0).count("local sum 2") == 2


@pytest.mark.torch
def test_second_process_group_is_created_after_the_first_is_destroyed(tmp_path: Path) -> None:
    """torch names both groups alike: rank 1 may read an address of the first, and the second hangs to its timeout."""
    script = tmp_path / "twice.py"
    script.write_text(TWICE)
    environ = {"DTJ_PROCESSES_PER_POD": "2", "GLOO_SOCKET_IFNAME": "lo", "DTJ_MAX_RESTARTS": "15"}
    with running(tmp_path, 1, [sys.executable, "-u", str(script)], **environ) as group:
        assert group.wait_exit(0, 480) == 0, group.logs()
        assert group.log(0).count("turn 1 sum 2") >= 2
