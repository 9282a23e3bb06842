"""The agent takes the progress that Kubeflow's clients send, and nothing that these would not send."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from dtj_agent.net import progress_server
from dtj_agent.net.loop import Loop
from dtj_agent.net.progress_server import ProgressServer
from dtj_agent.workers import kubeflow
from tests.lib.waiting import wait_until
from tests.unit.agent.harness import running


def _status(percent: Any = None, left: Any = None, **metrics: Any) -> dict[str, Any]:
    listed = [{"name": name, "value": str(value)} for name, value in metrics.items()]
    status = {"progressPercentage": percent, "estimatedRemainingSeconds": left, "metrics": listed}
    return {"trainerStatus": {"lastUpdatedTime": "2026-11-27T00:00:00+00:00", **status}}


REPORTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "a step of transformers": (
        _status(40, 90, loss=0.5, learning_rate=1e-3, epoch=0.4, current_step=12, total_steps=30, current_epoch=0.4),
        {
            "step": 12,
            "totalSteps": 30,
            "loss": 0.5,
            "percent": 40,
            "remainingSeconds": 90,
            "metrics": {"learning_rate": 1e-3, "epoch": 0.4, "current_epoch": 0.4},
        },
    ),
    "the begin of a training, which may be a resumed one": (_status(0, total_steps=30), {"totalSteps": 30}),
    "a script of the SDK": (_status(0, 5, step=0), {"step": 0, "percent": 0, "remainingSeconds": 5}),
    "an estimate alone": (_status(7.5), {"percent": 7.5}),
    "values that are no numbers": (_status(True, "x", loss="nan", accuracy="high", f1="inf", big="1" * 400), {}),
    "numbers out of range": (_status(101, -1, current_step=-3, total_steps=2.5), {}),
    "metrics of another form": ({"trainerStatus": {"metrics": [3, {"name": 4, "value": "1"}, None]}}, {}),
    "half a character": (_status(1, **{"\ud800": 1.5}), {"percent": 1, "metrics": {"?": 1.5}}),
}


@pytest.mark.parametrize(("sent", "expected"), REPORTS.values(), ids=REPORTS)
def test_status_of_kubeflow_becomes_a_report(sent: Any, expected: dict[str, Any]) -> None:
    found = kubeflow.parse(json.dumps(sent).encode(), attempt=2, rank=1)
    assert found == {"rank": 1, "attempt": 2, **expected}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"trainerStatus": 3}', b"[" * 100_000, b"\xff\xfe", b"1" * 9999])
def test_rubbish_is_no_report(body: bytes) -> None:
    assert kubeflow.parse(body, attempt=1, rank=0) is None


def test_metrics_are_bounded() -> None:
    found = kubeflow.parse(json.dumps(_status(1, **{f"m{n}": n for n in range(1000)})).encode(), 1, 0)
    assert found is not None
    assert len(found["metrics"]) == 32


# The client sends as KubeflowCallback does.
CLIENT = """
import json, os, sys, time, urllib.error, urllib.request
def send(status, url=os.environ.get("KUBEFLOW_TRAINER_SERVER_URL"), token=None):
    if token is None:
        token = open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"], encoding="utf-8").read().strip()
    headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
    data = status if isinstance(status, bytes) else json.dumps({"trainerStatus": status}).encode("utf-8")
    request = urllib.request.Request(url, data=data, headers=headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
def until(name):
    while not os.path.exists(os.path.join(os.environ["PLAN"], name)):
        time.sleep(0.02)
rank = int(os.environ["RANK"])
"""
TRAINING = (
    CLIENT
    + """
if rank == 0:
    assert send({"progressPercentage": 0, "metrics": [{"name": "total_steps", "value": "30"}]}) == 200
    metrics = {"loss": "0.25", "current_step": 12, "total_steps": 30, "grad_norm": 1.5}
    listed = [{"name": name, "value": str(value)} for name, value in metrics.items()]
    print("sent:", send({"progressPercentage": 40, "estimatedRemainingSeconds": 90, "metrics": listed}), flush=True)
    own = os.environ["KUBEFLOW_TRAINER_SERVER_URL"]
    print("other rank:", send({"progressPercentage": 99}, own.replace("ranks/0", "ranks/7")))
    print("other attempt:", send({"progressPercentage": 98}, own.replace("attempts/1", "attempts/5")))
    print("bad token:", send({"progressPercentage": 97}, token="x" * 64))
    print("no status:", send(b"{}"))
    print("other page:", send({}, own.rpartition("/attempts")[0] + "/status"), flush=True)
until("finish")
"""
)


def test_progress_of_a_client_is_in_the_status_and_rubbish_is_not(tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    script.write_text(TRAINING)
    with running(tmp_path, 1, [sys.executable, "-u", str(script)], DTJ_PROCESSES_PER_POD="2") as group:
        wait_until("the last answer", lambda: "other page" in group.log(0))
        progress = wait_until("the report", lambda: group.status()["progress"])
        assert (progress["step"], progress["totalSteps"], progress["loss"]) == (12, 30, 0.25)
        assert (progress["percent"], progress["remainingSeconds"]) == (40, 90)
        assert progress["metrics"] == {"grad_norm": 1.5}
        lines = [line.partition("] ")[2] for line in group.log(0).splitlines() if "[rank 0]" in line]
        assert lines == [
            "sent: 200", "other rank: 200", "other attempt: 200", "bad token: 401", "no status: 400", "other page: 404",
        ]  # fmt: skip
        token = next(tmp_path.rglob("kubeflow-token"))
        assert token.stat().st_mode & 0o777 == 0o600
        assert token.read_text() not in group.log(0)
        group.tell("finish")
        assert group.wait_exit(0) == 0
    assert not token.exists()


@pytest.mark.parametrize(
    ("environ", "shown"),
    [
        ({"DTJ_KUBEFLOW_PROGRESS": "Never"}, "None None"),
        ({"KUBEFLOW_TRAINER_SERVER_URL": "https://own"}, "https://own None"),
    ],
    ids=["turned off", "a server of the user's own"],
)
def test_server_is_absent_if_the_job_has_none_or_its_own(tmp_path: Path, environ: dict[str, str], shown: str) -> None:
    script = tmp_path / "shows.py"
    script.write_text(
        "import os\n"
        "names = ('KUBEFLOW_TRAINER_SERVER_URL', 'KUBEFLOW_TRAINER_SERVER_TOKEN')\n"
        "print('found', *map(os.environ.get, names))\n"
    )
    with running(tmp_path, 1, [sys.executable, str(script)], **environ) as group:
        assert group.wait_exit(0) == 0
        assert f"found {shown}" in group.log(0)


def test_token_is_not_sent_through_a_proxy(tmp_path: Path) -> None:
    server = ProgressServer(Loop(), str(tmp_path), lambda attempt, rank, body: True)
    try:
        assert "no_proxy" not in server.environment(1, 0, {})
        found = server.environment(1, 0, {"https_proxy": "p", "HTTP_PROXY": "http://p", "NO_PROXY": ".svc"})
        assert (found["no_proxy"], found["NO_PROXY"]) == (".svc,127.0.0.1", ".svc,127.0.0.1")
        assert server.environment(1, 0, {"http_proxy": "p", "no_proxy": "*"})["no_proxy"] == "*"
    finally:
        server.close()


class Served:
    """A server in this process, whose loop turns while a condition is awaited."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.bodies: list[tuple[int, int, bytes]] = []
        self.loop = Loop(clock=lambda: self.now)
        self.server = ProgressServer(self.loop, str(folder), self._take)
        self.loop.soon(lambda: None)
        self.token = Path(self.server.token_file).read_text()

    def _take(self, attempt: int, rank: int, body: bytes) -> bool:
        self.bodies.append((attempt, rank, body))
        return True

    def connect(self, data: bytes = b"") -> socket.socket:
        sock = socket.create_connection((progress_server.HOST, self.server.port), timeout=30)
        sock.sendall(data)
        return sock

    def request(self, body: bytes = b"{}", **headers: str) -> bytes:
        fields = {"Authorization": "Bearer " + self.token, "Content_Length": str(len(body)), **headers}
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items() if value)
        return f"POST /attempts/1/ranks/0 HTTP/1.1\r\n{head}\r\n".encode() + body

    def turn(self) -> None:
        self.loop.soon(lambda: None)
        self.loop.run_once()

    def answer(self, sock: socket.socket) -> bytes:
        sock.setblocking(False)
        found = bytearray()

        def read() -> bool:
            self.turn()
            try:
                while data := sock.recv(4096):
                    found.extend(data)
            except BlockingIOError:
                return False
            except ConnectionResetError:
                pass
            return True

        wait_until("the end of the answer", read)
        return bytes(found)


@pytest.fixture
def served(tmp_path: Path) -> Any:
    found = Served(tmp_path)
    yield found
    found.server.close()


REFUSED = {
    "no token": (b"POST /attempts/1/ranks/0 HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 401),
    "GET": (b"GET /attempts/1/ranks/0 HTTP/1.1\r\n\r\n", 405),
    "no HTTP": (b"\0\1\2\r\n\r\n", 400),
    "a head without end": (b"POST / HTTP/1.1\r\nA: " + b"x" * 9000, 400),
}


@pytest.mark.parametrize(("data", "code"), REFUSED.values(), ids=REFUSED)
def test_request_that_no_client_sends_is_refused(served: Served, data: bytes, code: int) -> None:
    assert served.answer(served.connect(data)).startswith(b"HTTP/1.1 %d " % code)
    assert served.bodies == []


@pytest.mark.parametrize("length", ["", "-1", "x", "131073", "9" * 5000])
def test_body_without_a_bounded_length_is_refused(served: Served, length: str) -> None:
    assert served.answer(served.connect(served.request(Content_Length=length))).startswith(b"HTTP/1.1 413 ")


def test_request_may_arrive_in_parts(served: Served) -> None:
    whole = served.request(b'{"trainerStatus": {}}')
    sock = served.connect(whole[:20])
    for part in (whole[20:150], whole[150:-3], whole[-3:]):
        served.turn()
        sock.sendall(part)
    assert served.answer(sock).startswith(b"HTTP/1.1 200 ")
    assert served.bodies == [(1, 0, b'{"trainerStatus": {}}')]


def test_silent_connections_end_and_leave_room_for_others(served: Served) -> None:
    silent = [served.connect(b"POST ") for _ in range(progress_server.MAX_OPEN)]
    wait_until("all of them to be open", lambda: served.turn() or len(served.server._open) == len(silent))
    late = served.connect(served.request())
    for _ in range(20):
        served.turn()
    assert served.bodies == [], "no room yet"
    served.now += 6
    assert served.answer(late).startswith(b"HTTP/1.1 200 ")
    assert len(served.server._open) == 0
    for sock in (*silent, late):
        sock.close()


def test_flood_is_answered_at_a_bounded_pace(served: Served) -> None:
    """The clock stands, so one second's allowance is all that is answered, however often the loop turns."""
    served.now = 10.0
    flood = []
    for _ in range(progress_server.MAX_PER_SECOND + 20):
        flood.append(served.connect(served.request()))
        served.turn()
    for _ in range(50):
        served.turn()
    assert len(served.bodies) == progress_server.MAX_PER_SECOND
    served.now += 1.1
    wait_until("the next second's requests", lambda: served.turn() or len(served.bodies) == len(flood))
    for sock in flood:
        sock.close()
