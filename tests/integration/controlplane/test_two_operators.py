"""Two operators at once, one of them late or killed.

A finished job stays finished, and no object is created twice.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dtj_contract import names
from hack.cluster.shell import ProvisionError
from tests.integration.controlplane.kubelet import Kubelet
from tests.integration.controlplane.support import Agents, Objects, Operator, outcome, running, wait_until

Start = Callable[..., Operator]
JOBS = names.PLURAL
HERE = Path(__file__).parent


def made(objects: Objects, plural: str) -> int:
    """Returns how many objects of this kind were created in the namespace, from the audit log."""
    return sum(
        1
        for call in objects.plane.audit_events()
        if (ref := call.get("objectRef") or {}).get("resource") == plural
        and (ref.get("namespace"), call["responseStatus"].get("code")) == (objects.namespace, 201)
        and "subresource" not in ref
        and "dryRun=All" not in call["requestURI"]
    )


def reconciles(operator: Operator, result: str) -> float:
    """Returns how many reconciles of this operator had this result."""
    found = re.search(rf'dtj_reconcile_total\{{result="{result}"\}} (\S+)', operator.get("/metrics")[1])
    return float(found[1]) if found else 0.0


def finish(objects: Objects, kubelet: Kubelet, job: Any) -> Any:
    """Ends the training.

    Returns the job when it is Complete and its StatefulSet is gone.
    """
    kubelet.container_states["j-0"] = outcome(job, "Succeeded", "AllWorkersSucceeded")
    wait_until("the job is complete", lambda: objects.condition("j", "Complete"), timeout=60)
    wait_until("its StatefulSet is gone", lambda: not objects.get("statefulsets", "j"), timeout=60)
    return objects.get(JOBS, "j")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("verb", "what", "text"),
    [("apply", f"{JOBS}/status", '"attempt": 2'), ("create", "pods", "dry-run")],
    ids=["a status write", "the making of the StatefulSet"],
)
def test_very_late_write_does_not_run_a_finished_job_again(
    verb: str,
    what: str,
    text: str,
    start_operator: Start,
    submit: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    late = start_operator(program=(str(HERE / "late.py"), verb, what, text, str(gate))).ready()
    job = submit()
    agents.statuses[job["metadata"]["uid"]] = running(attempt=2)
    wait_until("the first operator's call waits", gate.with_suffix(".held").exists, timeout=60)
    other = start_operator().ready()
    wait_until("the job runs", lambda: objects.condition("j", "Running"), timeout=60)
    before = finish(objects, kubelet, job)
    gate.touch()
    wait_until("the late call is dropped", lambda: reconciles(late, "conflict"), timeout=60)
    late.kill()
    other.kill()
    third = start_operator().ready()
    wait_until("the next operator has reconciled", lambda: reconciles(third, "success"), timeout=60)
    after = objects.get(JOBS, "j")
    assert (after["status"], after["metadata"]["resourceVersion"]) == (
        before["status"],
        before["metadata"]["resourceVersion"],
    )
    assert not objects.get("statefulsets", "j")
    assert (made(objects, "statefulsets"), made(objects, "pods")) == (1, 2)


@pytest.mark.timeout(600)
def test_two_operators_killed_in_turns_create_and_finish_everything_once(
    start_operator: Start,
    submit: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
    tmp_path: Path,
) -> None:
    journals = [tmp_path / "a.journal", tmp_path / "b.journal"]
    job = submit()
    agents.statuses[job["metadata"]["uid"]] = running(step=7)
    pair = [start_operator(program=(str(HERE / "crashing.py"), str(journal))) for journal in journals]
    kills = 0

    def over() -> bool:
        nonlocal kills
        for place, operator in enumerate(pair):
            if operator.process.poll() is not None:
                assert operator.process.returncode == -signal.SIGKILL, operator.log.read_text()
                kills += 1
                pair[place] = start_operator(program=(str(HERE / "crashing.py"), str(journals[place])))
        if objects.condition("j", "Running"):
            kubelet.container_states["j-0"] = outcome(job, "Succeeded", "AllWorkersSucceeded")
        return bool(objects.condition("j", "Complete")) and not objects.get("statefulsets", "j")

    wait_until("the run is over", over, timeout=420)
    assert kills >= 4
    assert (made(objects, "statefulsets"), made(objects, "pods")) == (1, 2)
    status = objects.get(JOBS, "j")["status"]
    assert (status["phase"], status["attempt"], status["restarts"]["total"]) == ("Complete", 1, 0)
    reasons = [event["reason"] for event in objects.list("events") if event["regarding"]["kind"] == names.KIND]
    # An operator that is killed after its status write sends no event; none is sent twice.
    once = ("ChildrenCreated", "WorkersRunning", "AllWorkersSucceeded")
    assert all(reasons.count(reason) <= 1 for reason in once), reasons


END = {"status": "True", "reason": "X", "message": "", "lastTransitionTime": "2026-11-21T00:00:00Z"}
TIME = "2026-11-21T00:00:00Z"
BACK: dict[str, Any] = {
    "no status": None,
    "no condition": {"completionTime": TIME},
    "false": {"completionTime": TIME, "conditions": [END | {"type": "Complete", "status": "False"}]},
    "the other end": {"completionTime": TIME, "conditions": [END | {"type": "Failed"}]},
    "both ends": {"completionTime": TIME, "conditions": [END | {"type": "Failed"}, END | {"type": "Complete"}]},
    "another time": {"completionTime": "2026-11-22T00:00:00Z", "conditions": [END | {"type": "Complete"}]},
    "no time": {"conditions": [END | {"type": "Complete"}]},
}


@pytest.mark.parametrize("case", BACK)
def test_api_server_rejects_leaving_a_terminal_condition(
    case: str, submit: Callable[..., Any], objects: Objects
) -> None:
    job = submit()
    path = objects.path(JOBS, "j") + "/status"
    ended = {"completionTime": TIME, "conditions": [END | {"type": "Complete"}]}
    job = objects.plane.request("PUT", path, job | {"status": ended})
    with pytest.raises(ProvisionError, match=r"stays so|can't change"):
        objects.plane.request("PUT", path, {k: v for k, v in (job | {"status": BACK[case]}).items() if v is not None})
    assert json.dumps(objects.get(JOBS, "j")["status"], sort_keys=True) == json.dumps(ended, sort_keys=True)


def test_terminal_status_may_still_be_written(submit: Callable[..., Any], objects: Objects) -> None:
    job = submit()
    path = objects.path(JOBS, "j") + "/status"
    first = [END | {"type": "Running"}]
    job = objects.plane.request("PUT", path, job | {"status": {"conditions": first}})
    conditions = [END | {"type": "Running", "status": "False"}, END | {"type": "Failed"}]
    job = objects.plane.request("PUT", path, job | {"status": {"completionTime": TIME, "conditions": conditions}})
    conditions.append(END | {"type": "Suspended", "status": "False"})
    status = {"completionTime": TIME, "conditions": conditions, "observedGeneration": 2}
    assert objects.plane.request("PUT", path, job | {"status": status})["status"]["observedGeneration"] == 2
    job = objects.get(JOBS, "j")
    job["spec"]["ttlSecondsAfterFinished"] = 5
    objects.plane.request("PUT", objects.path(JOBS, "j"), job)
