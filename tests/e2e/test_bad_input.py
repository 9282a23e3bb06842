"""Bad input on a real cluster: each ends in a condition with the cause and the evidence."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.kit import Job, conditions, wait_until


def command(*arguments: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", "command": list(arguments)}]}}


@pytest.mark.parametrize(
    ("spec", "reason", "says"),
    [
        pytest.param(
            {"entrypoint": {"script": "/app/nowhere.py"}}, "EntrypointNotFound", "/app/nowhere.py", id="no such script"
        ),
        pytest.param({"entrypoint": {"module": "nowhere.train"}}, "EntrypointNotFound", "nowhere", id="no such module"),
        pytest.param(
            {"entrypoint": None, "template": command("python3", "-c", "import torchh")},
            "ImportFailed",
            "torchh",
            id="an import error",
        ),
        pytest.param(
            {"entrypoint": None, "template": command("python3", "-c", "def f(:")},
            "ScriptError",
            "SyntaxError",
            id="a syntax error",
        ),
        pytest.param(
            {
                "entrypoint": None,
                "template": command(
                    "python3", "-c", "import argparse; argparse.ArgumentParser().parse_args()", "--lrr"
                ),
            },
            "UsageError",
            "unrecognized arguments: --lrr",
            id="a wrong flag",
        ),
        pytest.param(
            {"entrypoint": None, "template": command("python3", "-c", "breakpoint()")},
            "ScriptError",
            "bdb.BdbQuit",
            id="a breakpoint",
        ),
        pytest.param(
            {"entrypoint": None, "template": command("trian")}, "EntrypointNotFound", "trian", id="no such program"
        ),
        pytest.param(
            {"entrypoint": None, "template": command("python3", "-c", "raise SystemExit(93)")},
            "NoRestartExitCode",
            "93",
            id="exit 93",
        ),
        pytest.param(
            {
                "entrypoint": None,
                "template": command("python3", "-c", "raise ValueError('lr must be > 0')"),
                "restart": {"maxRestarts": 1},
            },
            "RestartBudgetSpent",
            "lr must be > 0",
            id="a script that always fails",
        ),
    ],
)
def test_impossible_job_fails_with_its_evidence(
    make_job: Callable[..., Job], spec: Any, reason: str, says: str
) -> None:
    job = make_job("bad", replicas=2, **spec).create()
    status = job.wait("Failed", 90)["status"]
    failed = next(c for c in status["conditions"] if c["type"] == "Failed")
    assert failed["reason"] == reason
    assert says in failed["message"] + status["failures"][-1]["logTail"]
    assert status["failures"][-1]["pod"].startswith("bad-")


def test_wrong_claim_name_is_named_in_a_condition(make_job: Callable[..., Job]) -> None:
    job = make_job("claim", replicas=1, checkpoint={"volume": {"claimName": "sharde"}}).create()

    def running() -> dict[str, Any]:
        return conditions(job.get()).get("Running", {})

    wait_until("the condition names the claim", lambda: "sharde" in running().get("message", ""), timeout=90)
    assert running()["reason"] == "VolumeClaimNotFound"
    assert running()["status"] == "False"
    job.delete()


@pytest.mark.parametrize(
    ("template", "says"),
    [
        pytest.param(
            {"spec": {"containers": [{"name": "trainer", "resources": {"requests": {"cpu": "lots"}}}]}},
            "quantit",
            id="an invalid quantity",
        ),
        pytest.param(
            {"spec": {"containers": [{"name": "trainer", "ports": [{"containerPort": 70000}]}]}},
            "port",
            id="an invalid port",
        ),
    ],
)
def test_invalid_template_fails_within_10_seconds_and_is_not_retried(
    make_job: Callable[..., Job], template: Any, says: str
) -> None:
    start = time.monotonic()
    job = make_job("rejected", template=template).create()
    status = job.wait("Failed", 15)["status"]
    took = time.monotonic() - start
    failed = next(c for c in status["conditions"] if c["type"] == "Failed")
    assert failed["reason"] == "TemplateRejected"
    assert says.lower() in failed["message"].lower()
    assert took < 10, f"{took:.1f} s"
    assert job.kubectl.get("statefulset", "rejected") is None


def test_pod_forbidden_by_the_namespace_is_a_condition_with_the_message(make_job: Callable[..., Job]) -> None:
    template = {"spec": {"hostNetwork": True, "containers": [{"name": "trainer"}]}}
    job = make_job("forbidden", replicas=1, template=template).create()

    def running() -> dict[str, Any]:
        return conditions(job.get()).get("Running", {})

    wait_until("the condition reports it", lambda: running().get("reason") == "ChildRefused", timeout=90)
    assert "hostnetwork" in running()["message"].lower()
    assert job.kubectl.get("statefulset", "forbidden") is None
    job.delete()
