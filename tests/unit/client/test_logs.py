"""`dtj logs` of all pods of a job, through a real API server.

A small HTTPS server takes the kubelet's place.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtj.cluster import logs
from hack.cluster.controlplane import ControlPlane
from tests.lib.waiting import TIMEOUT, wait_until
from tests.unit.client.logserver import LogServer
from tests.unit.client.support import set_status

pytestmark = pytest.mark.controlplane
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def node(cluster: ControlPlane, tmp_path: Path) -> Iterator[LogServer]:
    """Returns a node whose kubelet is a LogServer; deletes its pods after the test."""
    with LogServer(tmp_path / "pki") as server:
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": server.port}},
        }
        cluster.request("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}, "status": status})
        yield server
        for pod in cluster.request("GET", PODS)["items"]:
            delete_pod(cluster, pod["metadata"]["name"])
        cluster.request("DELETE", "/api/v1/nodes/n1")


def make_pod(plane: ControlPlane, ordinal: int) -> None:
    labels = {"training.dtj.dev/job-name": "count", "apps.kubernetes.io/pod-index": str(ordinal)}
    spec = {"nodeName": "n1", "containers": [{"name": "trainer", "image": "x"}]}
    pod = plane.request("POST", PODS, {"metadata": {"name": f"count-{ordinal}", "labels": labels}, "spec": spec})
    running = {
        "name": "trainer",
        "image": "x",
        "imageID": "",
        "ready": True,
        "restartCount": 0,
        "state": {"running": {}},
    }
    pod["status"] = {"phase": "Running", "containerStatuses": [running]}
    plane.request("PUT", f"{PODS}/count-{ordinal}/status", pod)


def delete_pod(plane: ControlPlane, name: str) -> None:
    plane.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})


def at(second: int, text: str) -> str:
    return f"2026-01-01T00:00:{second:02d}.000000000Z {text}"


def test_logs_of_all_pods_are_ordered_by_time_with_the_pod_in_front(
    cluster: ControlPlane, node: LogServer, dtj: Any, job_file: Path
) -> None:
    dtj("submit", "-f", job_file)
    node.logs = {
        "count-0": [at(1, "[rank 0] a"), at(3, "[rank 0] c"), at(5, "[agent] e")],
        "count-1": [at(2, "[rank 1] b"), at(4, "[rank 1] d")],
    }
    for ordinal in (0, 1):
        make_pod(cluster, ordinal)
    code, out, err = dtj("logs", "count")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "count-0 [rank 0] a", "count-1 [rank 1] b", "count-0 [rank 0] c", "count-1 [rank 1] d", "count-0 [agent] e",
    ]  # fmt: skip
    assert dtj("logs", "count", "--rank", 1)[1].splitlines() == ["count-1 [rank 1] b", "count-1 [rank 1] d"]
    assert dtj("logs", "count", "--pod", 1, "--tail", 1)[1] == "count-1 [rank 1] d\n"
    dtj("logs", "count", "--since", "2m")
    assert node.queries[-1][1]["sinceSeconds"] == ["120"]


def test_report_of_a_job_reads_the_steps_that_rank_0_printed(
    cluster: ControlPlane, node: LogServer, dtj: Any, job_file: Path, tmp_path: Path
) -> None:
    dtj("submit", "-f", job_file)
    node.logs = {
        "count-0": [f"2100-01-01T00:00:{step:02d}.5Z [rank 0] step={step} loss={1 / step}" for step in range(1, 9)],
        "count-1": [at(2, "[rank 1] step=3 loss=9")],
    }
    for ordinal in (0, 1):
        make_pod(cluster, ordinal)
    page = tmp_path / "r.html"
    code, out, errors = dtj("report", "count", "-o", page)
    assert (code, out.splitlines()[0], errors) == (0, str(page), "")
    assert "not enough numbers: no logged steps have the seconds of their sections" in out
    text = page.read_text()
    assert "loss of attempt 1" in text
    assert "No logged steps were found" not in text
    assert dtj("report", "absent")[0] == 1


def test_following_continues_through_a_replaced_pod_until_the_job_ends(
    cluster: ControlPlane, node: LogServer, dtj: Any, job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dtj("submit", "-f", job_file)
    node.logs = {"count-0": [at(1, "[rank 0] a")]}
    make_pod(cluster, 0)

    def happen() -> None:
        wait_until("the first pod is followed", lambda: node.queries)
        node.write("count-0", at(2, "[rank 0] b"))
        node.end("count-0")
        delete_pod(cluster, "count-0")
        node.logs["count-0"] = [at(3, "[rank 0] c")]
        node.ended.clear()
        make_pod(cluster, 0)
        wait_until("the second pod is followed", lambda: len(node.queries) == 2)
        node.write("count-0", at(4, "[rank 0] d"))
        set_status(cluster, "Complete")

    events = threading.Thread(target=happen)
    events.start()
    code, out, _ = dtj("logs", "count", "-f", "--tail", 100)
    events.join(TIMEOUT)
    assert code == 0
    assert out.splitlines() == [f"count-0 [rank 0] {letter}" for letter in "abcd"]
    assert "tailLines" not in node.queries[1][1], "--tail applies to output from before the command"


def test_following_resumes_where_a_stream_was_cut_off(
    cluster: ControlPlane, node: LogServer, dtj: Any, job_file: Path
) -> None:
    dtj("submit", "-f", job_file)
    node.logs = {"count-0": [at(1, "[rank 0] a")]}
    make_pod(cluster, 0)

    def happen() -> None:
        wait_until("the pod is followed", lambda: node.queries)
        node.end("count-0")  # a proxy ended it; the container still runs
        node.write("count-0", at(2, "[rank 0] b"))
        seen = len(node.queries)
        wait_until("the pod is followed again, and again", lambda: len(node.queries) >= seen + 2)
        set_status(cluster, "Complete")

    events = threading.Thread(target=happen)
    events.start()
    code, out, _ = dtj("logs", "count", "-f")
    events.join(TIMEOUT)
    assert code == 0
    assert out.splitlines() == ["count-0 [rank 0] a", "count-0 [rank 0] b"]
    assert "sinceTime" in node.queries[-1][1]


def test_logs_without_pods_show_the_evidence_and_where_the_logs_are(
    cluster: ControlPlane, dtj: Any, job_file: Path
) -> None:
    dtj("submit", "-f", job_file)
    code, _, err = dtj("logs", "count")
    assert code == 0
    assert "no pod of count has started yet" in err
    failure = {
        "attempt": 4,
        "rank": 1,
        "pod": "count-1",
        "reason": "WorkerFailed",
        "message": "it broke",
        "logTail": "one\ntwo",
    }
    set_status(cluster, "Failed", attempt=4, failures=[failure])
    for flags in ([], ["-f"]):
        code, out, err = dtj("logs", "count", *flags)
        assert code == 0
        assert out.splitlines() == ["count-1 attempt 4 rank 1 WorkerFailed: it broke", "count-1 one", "count-1 two"]
        assert "claim shared, in default/count/logs/" in err


def test_logs_of_a_job_that_never_ran_exit_with_1_and_the_reason(
    cluster: ControlPlane, dtj: Any, job_file: Path
) -> None:
    dtj("submit", "-f", job_file)
    set_status(cluster, "Failed")
    for flags in ([], ["-f"]):
        code, out, err = dtj("logs", "count", *flags)
        assert (code, out) == (1, "")
        assert "no worker ever ran: RestartBudgetSpent: rank 1 was ended by SIGSEGV" in err


def test_following_a_job_without_pods_reports_the_wait(
    cluster: ControlPlane, dtj: Any, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtj("submit", "-f", job_file)
    look = logs._look

    def asked(*which: Any) -> str:
        set_status(cluster, "Complete", attempt=1)  # only after the first look
        return look(*which)

    monkeypatch.setattr(logs, "_look", asked)
    code, _, err = dtj("logs", "count", "-f")
    assert code == 0
    assert "waiting for a pod of count to start; `dtj get count -n default -o wide` shows why" in err
