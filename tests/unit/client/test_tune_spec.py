"""sweep.yaml: what is accepted, what each error names, and the job of a trial."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dtj.errors import InputError
from dtj.tune import render, spec
from dtj_core.api import runtime

SWEEP: dict[str, Any] = {
    "apiVersion": "training.dtj.dev/v1alpha1",
    "kind": "DistributedTrainingSweep",
    "metadata": {"name": "search"},
    "spec": {
        "objective": {"metric": "loss"},
        "parameters": {"lr": {"type": "float", "min": "1e-4", "max": 0.1, "log": True}},
        "job": {
            "spec": {
                "replicas": 2,
                "processesPerPod": 2,
                "image": "x",
                "entrypoint": {"script": "t.py", "args": ["-v"]},
            }
        },
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(SWEEP)
    *parents, last = path.split(".")
    at = document
    for parent in parents:
        at = at.setdefault(parent, {})
    if value is None:
        del at[last]
    else:
        at[last] = value
    return document


def load(document: dict[str, Any]) -> spec.SweepDocument:
    sweep = spec.parse(document, "sweep.yaml")
    checked = render.check(sweep, "sweep.yaml")
    render.parallel(sweep, render.ranks(checked), "sweep.yaml")
    return sweep


ERRORS = {
    "kind": ("DistributedTrainingJob", "not a sweep but .*DistributedTrainingJob; write .*; dtj run .* take a job"),
    "metadata.name": ("Search_1", r"metadata\.name: String should match"),
    "spec.objective.metric": (None, r"spec\.objective\.metric: required, but missing"),
    "spec.objective.direction": ("max", r"spec\.objective\.direction: Input should be 'minimize' or .*, not 'max'"),
    "spec.objectiv": ({}, r"spec\.objectiv: unknown field; did you mean objective\?"),
    "spec.trials": (0, r"spec\.trials: Input should be greater than or equal to 1, not 0"),
    "spec.parameters": ({}, r"spec\.parameters: .* at least 1"),
    "spec.parameters.lr.max": ("1e-5", r"spec\.parameters\.lr: min 0.0001 is greater than max 1e-05: swap them"),
    "spec.parameters.lr.min": (0, r"spec\.parameters\.lr: log needs min > 0"),
    "spec.parameters.lr.step": (0.1, r"spec\.parameters\.lr: set log or step, not both"),
    "spec.parameters.lr.type": ("real", r"spec\.parameters\.lr\.type: write one of float, int, choice, not 'real'"),
    "spec.parameters.lr.logg": (True, r"spec\.parameters\.lr\.logg: unknown field; did you mean log\?"),
    "spec.parameters.n": ({"min": 1, "max": 2}, r"spec\.parameters\.n\.type: required, but missing: write one of"),
    "spec.parameters.m": ({"type": "int", "min": 1, "max": 2.5}, r"spec\.parameters\.m\.max: Input should be a valid"),
    "spec.parameters.c": ({"type": "choice", "values": [1, 1]}, r"spec\.parameters\.c\.values: a value is there twice"),
    "spec.parameters.e": (
        {"type": "int", "min": 1, "max": 2, "arg": "--e", "env": "E"}, r"spec\.parameters\.e: set arg or env, not both",
    ),
    "spec.pruner": ({"name": "hyperband"}, r"spec\.pruner: hyperband needs maxSteps"),
    "spec.stepDeadlineSeconds": (0, r"spec\.stepDeadlineSeconds: Input should be greater than or equal to 1, not 0"),
    "spec.algorithm": ({"name": "pbt"}, r"spec\.algorithm: pbt needs population and stepsPerGeneration"),
    "spec.algorithm.population": (4, r"spec\.algorithm: population and stepsPerGeneration are of pbt"),
    "spec.jobFile": ("job.yaml", "spec: set exactly one of job and jobFile"),
    "spec.maxRanks": (3, r"spec\.maxRanks: 3 is less than the 4 ranks of one trial"),
    "spec.job.spec.replica": (2, r"spec\.job\.spec\.replica: unknown field; did you mean replicas\?"),
    "spec.job.spec.entrypoint": (None, r"spec\.parameters\.lr: the job has no entrypoint"),
    "spec.job.spec": (None, r"spec\.job\.spec: required, but missing"),
    "spec.job.command": (["x"], r"spec\.job\.command: unknown field"),
    "spec.job.spec.suspend": (True, r"spec\.job\.spec\.suspend: no trial would start"),
    "spec.job.spec.ttlSecondsAfterFinished": (0, r"spec\.job\.spec\.ttlSecondsAfterFinished: .* start again; omit it"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value", "message"), [(path, *rest) for path, rest in ERRORS.items()], ids=ERRORS.keys()
)
def test_errors_name_the_field(path: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(changed(path, value))


def test_a_trial_job_has_the_parameters_behind_its_own_arguments() -> None:
    document = changed("spec.parameters.opt", {"type": "choice", "values": ["adam", "sgd"], "arg": "optim.name={}"})
    document["spec"]["parameters"]["clip"] = {"type": "choice", "values": [True, False], "env": "CLIP"}
    job = render.trial_job(load(document), 7, {"lr": 1e-05, "opt": "sgd", "clip": True})
    assert job["metadata"] == {
        "name": "search-0007",
        "labels": {"training.dtj.dev/sweep": "search", "training.dtj.dev/trial": "7"},
    }
    assert job["spec"]["entrypoint"]["args"] == ["-v", "--lr", "1e-05", "optim.name=sgd"]
    assert job["spec"]["env"] == [{"name": "CLIP", "value": "true"}]


def test_a_variable_stands_where_the_job_has_its_variables() -> None:
    document = changed("spec.parameters.lr.env", "LR")
    container = {"name": "trainer", "image": "y", "env": [{"name": "LR", "value": "0"}, {"name": "A", "value": "1"}]}
    document["spec"]["job"]["spec"] = {
        "entrypoint": {"script": "t.py"}, "template": {"spec": {"containers": [container]}},
    }  # fmt: skip
    job = render.trial_job(load(document), 0, {"lr": 0.5})
    assert "env" not in job["spec"]
    assert job["spec"]["template"]["spec"]["containers"][0]["env"] == [
        {"name": "A", "value": "1"},
        {"name": "LR", "value": "0.5"},
    ]


def test_a_trial_never_gets_the_ttl_of_its_runtime() -> None:
    document = changed("spec.job.spec.runtimeRef", {"name": "a100"})
    written = render.trial_job(load(document), 0, {"lr": 0.5})["spec"]
    assert runtime.merge({"ttlSecondsAfterFinished": 60}, written)["ttlSecondsAfterFinished"] == 2**31 - 1
    assert "ttlSecondsAfterFinished" not in render.trial_job(load(SWEEP), 0, {"lr": 0.5})["spec"]


def pbt() -> dict[str, Any]:
    document = changed("spec.algorithm", {"name": "pbt", "population": 4, "stepsPerGeneration": 50})
    document["spec"]["job"]["spec"]["checkpoint"] = {"volume": {"claimName": "shared"}}
    return document


def test_a_trial_of_a_later_generation_gets_its_steps_and_where_it_starts() -> None:
    job = render.trial_job(load(pbt()), 6, {"lr": 0.01}, begins_at=3)
    assert job["spec"]["env"] == [{"name": "TUNE_STEPS", "value": "100"}, {"name": "TUNE_FROM", "value": "search-0003"}]
    first = render.trial_job(load(pbt()), 3, {"lr": 0.01})
    assert first["spec"]["env"] == [{"name": "TUNE_STEPS", "value": "50"}]


def test_pbt_needs_a_volume_that_trials_share_and_no_pruner() -> None:
    document = pbt()
    document["spec"]["job"]["spec"]["checkpoint"]["volume"] = {"claimTemplate": {"size": "1Gi"}}
    with pytest.raises(InputError, match=r"spec\.job\.spec\.checkpoint\.volume: with pbt, .* that all trials share"):
        load(document)
    document = pbt()
    document["spec"]["pruner"] = {"name": "asha"}
    with pytest.raises(InputError, match="pbt replaces trials that lag behind by itself: omit pruner"):
        load(document)


def test_the_budget_of_ranks_bounds_the_trials_at_once() -> None:
    document = changed("spec.maxRanks", 9)
    document["spec"]["parallel"] = 5
    assert render.parallel(load(document), 4, "sweep.yaml") == 2


def test_a_sweep_is_read_back_from_what_is_written() -> None:
    sweep = load(SWEEP)
    assert spec.parse(spec.written(sweep), "again") == sweep
