"""The CRD on a real API server, through a real kubectl: accepted, rejected and immutable fields."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster.controlplane import ControlPlane
from tests.unit.api.specs import BAD, BAD_NAMES, GOOD, MINIMAL, job, template
from tests.unit.api.specs_shorthands import EVERYTHING


class Kubectl:
    def __init__(self, plane: ControlPlane, namespace: str, folder: Path) -> None:
        self.command = [plane.bin_dir / "kubectl", "--kubeconfig", plane.kubeconfig, "--namespace", namespace]
        self.folder = folder

    def __call__(self, *arguments: object, input_: object = None) -> subprocess.CompletedProcess[str]:
        text = None if input_ is None else json.dumps(input_)
        command = [*map(str, self.command), *map(str, arguments)]
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)

    def apply(self, body: Any) -> subprocess.CompletedProcess[str]:
        return self("apply", "-f", "-", input_=body)

    def dry_run(self, jobs: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        """Applies all jobs in one dry run, each from a file named after its case."""
        for case, body in jobs.items():
            (self.folder / f"{slug(case)}.yaml").write_text(yaml.safe_dump(body))
        return self("apply", "--dry-run=server", "-f", self.folder)


def slug(case: str) -> str:
    return "c-" + re.sub(r"[^a-z0-9]+", "-", case.lower())[:48].strip("-")


@pytest.fixture
def kubectl(plane: ControlPlane, namespace: str, tmp_path: Path) -> Kubectl:
    return Kubectl(plane, namespace, tmp_path)


def test_every_good_job_is_accepted(kubectl: Kubectl) -> None:
    done = kubectl.dry_run({case: job(spec, slug(case)) for case, spec in GOOD.items()})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("created (server dry run)") == len(GOOD) >= 10


def test_every_bad_job_is_rejected_with_the_wrong_field(kubectl: Kubectl) -> None:
    bad = {case: row for case, row in BAD.items() if case != "an unknown field that is null"}  # kubectl drops nulls
    done = kubectl.dry_run({case: job(spec, slug(case)) for case, (spec, _) in bad.items()})
    assert done.stdout == ""
    answers = re.split(r"(?m)^(?=Error from server|The DistributedTrainingJob)", done.stderr)
    for case, (_, field) in bad.items():
        mine = [answer for answer in answers if f'"{slug(case)}"' in answer or f"/{slug(case)}.yaml" in answer]
        assert len(mine) == 1, (case, mine)
        named = re.search(re.escape(field) + r"(?![\w\[])", mine[0].replace(str(kubectl.folder), ""))
        assert named, f"{case}: {field} is not named in {mine[0]}"
    assert len(bad) >= 25


@pytest.mark.parametrize("case", BAD_NAMES)
def test_name_that_pods_and_services_cannot_have_is_rejected(case: str, kubectl: Kubectl) -> None:
    done = kubectl("apply", "--dry-run=server", "-f", "-", input_=job(MINIMAL, BAD_NAMES[case]))
    assert done.returncode == 1
    assert "metadata.name must" in done.stderr


def test_crd_defaults_are_those_of_the_python_types(kubectl: Kubectl, plane: ControlPlane, namespace: str) -> None:
    kubectl.apply(job({"checkpoint": {"volume": {"hostPath": {"path": "/x"}}}}))
    stored = plane.request("GET", f"/apis/training.dtj.dev/v1alpha1/namespaces/{namespace}/distributedtrainingjobs/j")
    assert stored["spec"] == {
        "image": "trainer:cpu",
        "entrypoint": {"module": "train", "args": []},
        "replicas": 1,
        "spares": 0,
        # A default would hide what a runtime gives: backend, engine, restart, and most of checkpoint have none.
        "checkpoint": {"volume": {"hostPath": {"path": "/x", "type": "Directory"}}},
        "successPolicy": "AllRanks",
        "kubeflowProgress": "Auto",
        "warmWorkers": "Auto",
        "preload": [],
        "hangDetection": {"policy": "Restart"},
        "suspend": False,
        "cleanPodPolicy": "All",
        "forceDeletePods": "WhenFenced",
    }


CHANGES: dict[str, dict[str, Any]] = {
    "replicas": {"replicas": 2},
    "processesPerPod": {"processesPerPod": 2},
    "backend": {"backend": "gloo"},
    "entrypoint": {"entrypoint": {"module": "train", "args": ["-x"]}},
    "image": {"image": "trainer:2"},
    "template": {"template": template({"nodeSelector": {"a": "b"}})},
    "checkpoint": {"checkpoint": {"volume": {"claimName": "other"}}},
    "warmWorkers": {"warmWorkers": "Never"},
    "preload": {"preload": ["lightning"]},
    "restart": {"restart": {"stopGraceSeconds": 11}},
    "hangDetection": {"hangDetection": {"policy": "Off"}},
    "progressDeadlineSeconds": {"progressDeadlineSeconds": 600},
    "spares": {"spares": 1},
    "elastic": {"elastic": {"minReplicas": 1}},
    "processesFrom": {"processesFrom": "cpu"},
    **{field: {field: EVERYTHING[field]} for field in EVERYTHING},
    "queueName": {"queueName": "team-a"},
    "successPolicy": {"successPolicy": "Rank0"},
    "engine": {"engine": "jax"},
    "runtimeRef": {"runtimeRef": {"name": "gpu"}},
}


@pytest.mark.parametrize("field", CHANGES)
def test_fields_that_shape_pods_change_only_while_suspended(field: str, kubectl: Kubectl) -> None:
    start = {"template": template(), "checkpoint": {"volume": {"claimName": "c"}}}
    assert kubectl.apply(job(start)).returncode == 0
    refused = kubectl.apply(job(start | CHANGES[field]))
    assert refused.returncode == 1
    assert re.search(rf"spec\.{field}(\.\w+)?(: Invalid value: .*| )can't change ", refused.stderr), refused.stderr
    assert "set spec.suspend to true first" in refused.stderr
    for spec in (start | {"suspend": True}, start | CHANGES[field] | {"suspend": True}, start | CHANGES[field]):
        done = kubectl.apply(job(spec))
        assert done.returncode == 0, done.stderr


def test_unknown_template_field_is_immutable_too(kubectl: Kubectl) -> None:
    kubectl.apply(job({"template": template({"future": {"a": 1}})}))
    # CEL does not notice that {"future": …} became {"other": …}, because the schema knows neither.
    # The pods of such a job are recreated (tests/unit/plan/test_suspend.py).
    for other in ({"future": {"a": 2}}, {"future": {"b": 1}}, {"future": {"a": 1}, "more": 1}, {}):
        assert kubectl.apply(job({"template": template(other)})).returncode == 1, other


def test_restart_budget_changes_while_the_job_runs_and_rules_do_not(kubectl: Kubectl) -> None:
    rules = [{"exitCodes": [3], "action": "Fail"}]
    assert kubectl.apply(job({"restart": {"rules": rules}})).returncode == 0
    budget = {"maxRestarts": 50, "windowSeconds": 60, "maxRestartsWithoutProgress": 5}
    for restart in (budget, {"maxRestarts": 9}, {}):
        done = kubectl.apply(job({"restart": {"rules": rules, **restart}}))
        assert done.returncode == 0, done.stderr
    for restart in ({}, {"rules": []}, {"rules": [*rules, *rules]}, {"rules": rules, "stopGraceSeconds": 0}):
        refused = kubectl.apply(job({"restart": restart}))
        assert refused.returncode == 1, restart
        field = "stopGraceSeconds" if restart.get("rules") == rules else "rules"
        assert f"spec.restart.{field} can't change unless the job is suspended" in refused.stderr


def test_number_of_kept_checkpoints_changes_while_the_job_runs(kubectl: Kubectl) -> None:
    checkpoint = {"volume": {"claimName": "c"}, "everySteps": 5}
    assert kubectl.apply(job({"checkpoint": checkpoint})).returncode == 0
    for keep in ({"keep": 9}, {}):
        done = kubectl.apply(job({"checkpoint": checkpoint | keep}))
        assert done.returncode == 0, done.stderr
    for other in ({"everySteps": 6}, {"mountPath": "/other"}, {"volume": {"claimName": "d"}}):
        refused = kubectl.apply(job({"checkpoint": checkpoint | other}))
        assert refused.returncode == 1, other
        assert f"spec.checkpoint.{next(iter(other))} can't change unless the job is suspended" in refused.stderr


def test_checkpoint_that_is_added_is_named_as_a_whole(kubectl: Kubectl) -> None:
    kubectl.apply(job({}))
    refused = kubectl.apply(job({"checkpoint": {"volume": {"claimName": "c"}}}))
    assert "spec.checkpoint can't change unless the job is suspended" in refused.stderr


def test_controller_of_a_job_never_changes(kubectl: Kubectl) -> None:
    assert kubectl.apply(job({"managedBy": "example.com/mine", "suspend": True})).returncode == 0
    for spec in ({"managedBy": "example.com/other"}, {}):
        refused = kubectl.apply(job(spec | {"suspend": True}))
        assert refused.returncode == 1, spec
        assert "managedBy can't change: create a new job" in refused.stderr


def test_lifetime_fields_change_at_any_time(kubectl: Kubectl) -> None:
    kubectl.apply(job({}))
    changes = {"ttlSecondsAfterFinished": 60, "activeDeadlineSeconds": 3600, "cleanPodPolicy": "None"}
    assert kubectl.apply(job(changes)).returncode == 0


def test_kubectl_explains_every_field_of_the_spec(kubectl: Kubectl) -> None:
    explained = kubectl("explain", "dtj.spec", "--api-version=training.dtj.dev/v1alpha1").stdout
    for field in ("replicas", "checkpoint", "ttlSecondsAfterFinished"):
        assert re.search(rf"(?m)^  {field}\t<", explained), explained
    assert "Number of newest checkpoints to keep" in kubectl("explain", "dtj.spec.checkpoint.keep").stdout


RUNNING = {
    "type": "Running",
    "status": "True",
    "reason": "WorkersRunning",
    "message": "",
    "lastTransitionTime": "2026-11-21T00:00:00Z",
}


def test_kubectl_get_prints_the_state_of_a_job(kubectl: Kubectl) -> None:
    kubectl.apply(job({}))
    status = {
        "status": {
            "phase": "Running", "ready": "3/3", "attempt": 2, "reason": "WorkersRunning", "restarts": {"total": 1},
            "spares": 1, "queueName": "team-a",
            "progress": {
                "step": 130, "percent": 43.3, "loss": 0.31, "stepsPerSecond": 2.5, "eta": "2026-11-21T00:10:00Z",
            },
            "checkpoint": {"step": 100}, "goodput": 0.97,
            "conditions": [RUNNING],
        }
    }  # fmt: skip
    done = kubectl("patch", "dtj", "j", "--subresource=status", "--type=merge", "-p", json.dumps(status))
    assert done.returncode == 0, done.stderr
    header, row = kubectl("get", "dtj").stdout.splitlines()
    narrow = ["PHASE", "READY", "RESTARTS", "STEP", "PROGRESS", "REASON"]
    state = ["Running", "3/3", "1", "130", "43.3", "WorkersRunning"]
    assert header.split() == ["NAME", *narrow, "AGE"]
    assert row.split()[:-1] == ["j", *state]
    header, row = kubectl("get", "dtj", "-o", "wide").stdout.splitlines()
    wide = ["ATTEMPT", "LOSS", "RATE", "ETA", "GOODPUT", "CHECKPOINT", "SPARES", "QUEUE"]
    assert header.split() == ["NAME", *narrow, *wide, "AGE"]
    more = ["2", "0.31", "2.5", "2026-11-21T00:10:00Z", "0.97", "100", "1", "team-a"]
    assert row.split()[:-1] == ["j", *state, *more]
    assert kubectl("wait", "dtj/j", "--for=condition=Running", "--timeout=5s").returncode == 0
