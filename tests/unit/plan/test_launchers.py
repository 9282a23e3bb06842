"""A launcher in the command: the pods run the script itself, an event reports it, and pods that run keep theirs."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from dtj_contract import names
from dtj_core.plan import plan
from dtj_core.plan.model import Apply, Observed
from dtj_core.plan.times import rfc3339
from tests.unit.plan.objects import NOW, SETTINGS, agent, job, pods, service, started

TORCHRUN = ["torchrun", "--nproc-per-node=4", "train.py", "--lr", "1"]


def launched(command: list[str], **spec: Any) -> dict[str, Any]:
    container = {"name": "trainer", "command": command}
    return {"template": {"spec": {"containers": [container]}}, "entrypoint": None, **spec}


def trainer(stateful_set: Any) -> Any:
    return stateful_set["spec"]["template"]["spec"]["containers"][0]


def variable(container: Any, name: str) -> Any:
    return next((entry["value"] for entry in container["env"] if entry["name"] == name), None)


def events(**spec: Any) -> list[tuple[str, str, str]]:
    first = plan(job(**spec), Observed(), NOW, SETTINGS)
    return [(e.type, e.reason, e.message) for e in first.events if e.reason.startswith("Launcher")]


def test_pods_run_the_script_itself() -> None:
    container = trainer(started(**launched(TORCHRUN))[1])
    assert container["command"][2:] == ["--", "python3", "-u", "train.py", "--lr", "1"]
    assert variable(container, names.ENV_PROCESSES_PER_POD) == "4"


def test_variables_of_accelerate_are_set_unless_the_job_sets_them() -> None:
    command = ["accelerate", "launch", "--cpu", "--mixed_precision", "bf16", "t.py"]
    own = [{"name": "ACCELERATE_MIXED_PRECISION", "value": "no"}]
    container = trainer(started(**launched(command), env=own)[1])
    assert variable(container, "ACCELERATE_USE_CPU") == "true"
    assert [e["value"] for e in container["env"] if e["name"] == "ACCELERATE_MIXED_PRECISION"] == ["no"]


EVENTS: dict[str, tuple[dict[str, Any], tuple[str, str, str]]] = {
    "taken out": (
        launched(TORCHRUN),
        (
            "Normal",
            "LauncherRemoved",
            "torchrun is taken out of the command, because the agents start the ranks: 4 ranks in each pod",
        ),
    ),
    "numbers that differ": (
        launched(["torchrun", "--nnodes=2", "--nproc-per-node=4", "--max-restarts=3", "t.py"], processesPerPod=1),
        (
            "Warning",
            "LauncherRemoved",
            "torchrun is taken out of the command, because the agents start the ranks: 1 rank in each pod;"
            " the job has 3 pods (spec.replicas); spec.processesPerPod replaces its 4; without effect: --max-restarts",
        ),
    ),
    "kept": (
        launched(["accelerate", "launch", "--use_fsdp", "t.py"], processesPerPod=2),
        (
            "Normal",
            "LauncherKept",
            "accelerate launch stays in the command, because only the launcher can act on its flags: the agent starts"
            " one in each pod, with 2 as PET_NPROC_PER_NODE, and restarts all of them together",
        ),
    ),
}


@pytest.mark.parametrize(("spec", "event"), EVENTS.values(), ids=EVENTS)
def test_event_reports_what_became_of_the_launcher(spec: dict[str, Any], event: tuple[str, str, str]) -> None:
    assert events(**spec) == [event]


def test_command_without_a_launcher_has_no_such_event() -> None:
    assert events() == []


def test_pods_of_an_older_version_keep_their_launcher_when_they_are_repaired() -> None:
    """A pod that comes back must run as the others do, whose operator knew nothing of launchers."""
    spec = launched(TORCHRUN)
    stored, child = started(**spec)
    child = deepcopy(child)
    child["metadata"] |= {"generation": 2, "creationTimestamp": rfc3339(NOW)}
    container = trainer(child)
    container["command"] = [*container["command"][:3], *TORCHRUN]
    for entry in container["env"]:
        if entry["name"] == names.ENV_PROCESSES_PER_POD:
            entry["value"] = "1"
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent())
    actions = plan(stored, seen, NOW + 5, SETTINGS).actions
    (body,) = [a.body for a in actions if isinstance(a, Apply) and a.body["kind"] == "StatefulSet"]
    assert trainer(body)["command"] == container["command"]
    assert variable(trainer(body), names.ENV_PROCESSES_PER_POD) == "1"
