"""The health rule for Argo CD, run by the Lua interpreter of Argo CD on statuses that the planner wrote."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj_contract import names
from dtj_core.plan import plan
from dtj_core.plan.model import Observed
from hack.cluster import gobuild
from tests.unit.plan.objects import NOW, SETTINGS, UID, agent, job, pods, service, started

FILE = Path(__file__).parents[3] / "docs/health/argocd-cm.yaml"
KEY = f"resource.customizations.health.{names.GROUP}_{names.KIND}"


def lua(value: Any) -> str:
    """Returns a value as a Lua literal."""
    if isinstance(value, dict):
        return "{" + ",".join(f"[{lua(key)}]={lua(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ",".join(map(lua, value)) + "}"
    return json.dumps(value)


def health(obj: dict[str, Any], folder: Path) -> tuple[str, str]:
    """Returns status and message that Argo CD would show."""
    rule = yaml.safe_load(FILE.read_text())["data"][KEY]
    script = folder / "rule.lua"
    script.write_text(
        f"obj = {lua(obj)}\nlocal function rule()\n{rule}\nend\nlocal found = rule()\n"
        'print(found.status .. "|" .. found.message)\n'
    )
    done = subprocess.run(
        [gobuild.binary("glua"), str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    status, _, message = done.stdout.strip().partition("|")
    return status, message


def running() -> dict[str, Any]:
    stored, child = started()
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent())
    return job(plan(stored, seen, NOW, SETTINGS).status)


def restarting() -> dict[str, Any]:
    _, child = started()
    report = agent(phase="Rendezvous", phaseReason="WorkerFailed", attempt=1)
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=report)
    return job(plan(running(), seen, NOW + 5, SETTINGS).status)


def finished(result: str) -> dict[str, Any]:
    _, child = started()
    reason = "AllWorkersSucceeded" if result == "Succeeded" else "WorkerFailed"
    outcome = {"version": 1, "uid": UID, "result": result, "reason": reason, "message": "as it ended", "attempt": 1}
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent(phase="Finished", outcome=outcome))
    return job(plan(running(), seen, NOW + 9, SETTINGS).status)


def with_condition(kind: str) -> dict[str, Any]:
    condition = {"type": kind, "status": "True", "reason": "A", "message": "b"}
    return job({"observedGeneration": 1, "conditions": [condition]})


CASES = {
    "a job that nobody has seen": (lambda: job(), "Progressing", "waiting for the operator"),
    "a job whose change nobody has seen": (
        lambda: running() | {"metadata": {"generation": 2}}, "Progressing", "waiting for the operator",
    ),
    "a new job": (lambda: started()[0], "Progressing", "PodsPending: "),
    "a job that runs": (running, "Healthy", "WorkersRunning: "),
    "a job that restarts": (restarting, "Progressing", "WorkerFailed: "),
    "a complete job": (lambda: finished("Succeeded"), "Healthy", "AllWorkersSucceeded: "),
    "a failed job": (lambda: finished("Failed"), "Degraded", "WorkerFailed: "),
    "a suspended job": (lambda: with_condition("Suspended"), "Suspended", "A: b"),
    "a job of another version": (lambda: with_condition("Stalled"), "Degraded", "A: b"),
    "a job of another controller": (lambda: job(managedBy="example.com/mine"), "Healthy", "run by example.com/mine"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_health_rule_shows_the_state_of_a_job(case: str, tmp_path: Path) -> None:
    build, status, message = CASES[case]
    found = health(build(), tmp_path)
    assert found[0] == status
    assert found[1].startswith(message)
