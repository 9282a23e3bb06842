"""Whatever text a program prints or a person writes, the job completes.

The text arrives where it belongs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtj_contract import names
from hack.cluster.controlplane import ControlPlane
from tests.integration.controlplane.kubelet import Kubelet
from tests.integration.controlplane.support import Agents, Objects, Operator, running, wait_until
from tests.unit.api.texts import ANY_TEXT, as_stored

JOBS = names.PLURAL
ALL = " | ".join(ANY_TEXT.values())


def failed(job: Any, text: str) -> Any:
    """Returns container states of a pod whose agent ended the job with `text` in every text of its own."""
    failure = {"attempt": 1, "rank": 0, "ordinal": 0, "reason": "WorkerFailed", "message": text, "logTail": text}
    outcome = {
        "version": 1,
        "uid": job["metadata"]["uid"],
        "result": "Failed",
        "reason": "RestartBudgetSpent",
        "attempt": 1,
    }
    terminated = {"exitCode": 1, "message": json.dumps(outcome | {"message": text, "failure": failure})}
    return {"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "lastState": {"terminated": terminated}}


def test_any_text_in_a_log_tail_or_message_is_written_and_the_job_completes(
    start_operator: Callable[..., Operator],
    submit: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
) -> None:
    start_operator().ready()
    job = submit()
    failure = {"attempt": 1, "rank": 0, "ordinal": 0, "reason": "WorkerFailed", "message": ALL, "logTail": ALL}
    warning = {"type": "Warning", "reason": "RankSlow", "message": ALL, "time": 1790000004.0}
    metrics = {f"m{number} {text}": 1.5 for number, text in enumerate(ANY_TEXT.values())}
    status = running(step=1, failures=[failure], events=[warning])
    status["progress"] |= {"metrics": metrics}
    agents.statuses[job["metadata"]["uid"]] = status | {"checkpoint": {"step": 1, "path": ALL, "time": 1790000004.0}}
    wait_until("the job runs", lambda: objects.condition("j", "Running"))
    status = objects.get(JOBS, "j")["status"]
    assert (status["failures"][0]["logTail"], status["failures"][0]["message"]) == (as_stored(ALL), as_stored(ALL))
    assert status["checkpoint"]["path"] == as_stored(ALL)
    assert status["progress"]["metrics"] == {as_stored(name): number for name, number in metrics.items()}
    wait_until("an event reports it, too", lambda: [e for e in objects.list("events") if e["reason"] == "RankSlow"])
    kubelet.container_states["j-0"] = failed(job, ALL)
    ended = wait_until("the job has failed", lambda: objects.condition("j", "Failed"))
    assert (ended["reason"], ended["message"]) == ("RestartBudgetSpent", as_stored(ALL))
    wait_until("its pods are gone", lambda: not objects.list("pods"))


def test_any_text_in_a_template_reaches_the_pods(
    start_operator: Callable[..., Operator], objects: Objects, plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """dtj submits the text, the operator applies it, and the StatefulSet controller creates the pods."""
    env = [{"name": f"TEXT{number}", "value": text} for number, text in enumerate(ANY_TEXT.values())]
    trainer = {"name": "trainer", "env": env, "command": ["train"], "args": list(ANY_TEXT.values())}
    job = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "j", "namespace": namespace, "annotations": {"note": ALL}},
        "spec": {
            "image": "trainer:test",
            "template": {"metadata": {"annotations": {"note": ALL}}, "spec": {"containers": [trainer]}},
        },
    }
    file = tmp_path / "job.json"
    file.write_text(json.dumps(job))
    start_operator().ready()
    command = [sys.executable, "-m", "dtj.main", "submit", "-f", str(file), "--kubeconfig", str(plane.kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert objects.get(JOBS, "j")["metadata"]["annotations"]["note"] == as_stored(ALL)
    pod = wait_until("its pod is created", lambda: objects.list("pods"))[0]
    assert pod["metadata"]["annotations"]["note"] == as_stored(ALL)
    container = pod["spec"]["containers"][0]
    stored = [as_stored(text) for text in ANY_TEXT.values()]
    assert container["command"][-len(stored) :] == stored
    values = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert [values[entry["name"]] for entry in env] == stored
