"""`dtj convert` of a TrainJob and its runtime: where each field goes, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from dtj.convert.documents import runtimes
from dtj.errors import InputError
from dtj_core.api.launcher_flags import How
from tests.unit.client.converted import RUNTIME, TRAINJOB, at, changed, lost, notes, one, parsed

JOB = "spec.template.spec.replicatedJobs[0]"
POD = f"{JOB}.template.spec.template"
OVERRIDE: dict[str, Any] = {
    "targetJobs": [{"name": "node"}],
    "spec": {
        "serviceAccountName": "me",
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "containers": [{"name": "node", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
    },
}
PATCH: dict[str, Any] = {
    "manager": "example.io/team",
    "trainingRuntimeSpec": {
        "template": {
            "metadata": {"labels": {"team": "ml"}},
            "spec": {
                "replicatedJobs": [
                    {"name": "node", "template": {"spec": {"template": {"spec": {"nodeSelector": {"gpu": "h100"}}}}}}
                ]
            },
        }
    },
}
# name: (changes of the TrainJob, changes of the runtime, fields of the job, texts of its notes)
CARRIED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str]]] = {
    "numNodes of the job": ({}, {}, {"spec.replicas": 2}, ["spec.trainer.numNodes (2)", "spec.mlPolicy.numNodes (1)"]),
    "numNodes of the runtime": (
        {"spec.trainer.numNodes": None},
        {"spec.mlPolicy.numNodes": 3},
        {"spec.replicas": 3},
        [],
    ),
    "torchrun": ({}, {}, {"spec.entrypoint": {"script": "train.py"}}, ["torchrun: the agent starts the ranks itself"]),
    "image of the runtime": ({}, {}, {"spec.image": "registry.example/base:1"}, []),
    "image of the job": ({"spec.trainer.image": "own:1"}, {}, {"spec.image": "own:1"}, []),
    "args": (
        {"spec.trainer.args": ["--lr", "1"]},
        {},
        {"spec.entrypoint": {"script": "train.py", "args": ["--lr", "1"]}},
        [],
    ),
    "command of the runtime": (
        {"spec.trainer.command": None, "spec.trainer.args": ["t.py"]},
        {f"{POD}.spec.containers[0].command": ["torchrun"]},
        {"spec.entrypoint": {"script": "t.py"}},
        [],
    ),
    "env over the runtime's": (
        {"spec.trainer.env": [{"name": "A", "value": "job"}, {"name": "B", "value": "2"}]},
        {},
        {"spec.template.spec.containers[0].env": [{"name": "A", "value": "job"}, {"name": "B", "value": "2"}]},
        [],
    ),
    "resourcesPerNode": (
        {"spec.trainer.resourcesPerNode": {"limits": {"nvidia.com/gpu": 4}}},
        {},
        {"spec.template.spec.containers[0].resources.limits": {"nvidia.com/gpu": 4}, "spec.processesPerPod": None},
        [],
    ),
    "numProcPerNode": ({"spec.trainer.numProcPerNode": 2}, {}, {"spec.processesPerPod": 2}, ["numProcPerNode (2)"]),
    "numProcPerNode of the runtime": (
        {},
        {"spec.mlPolicy.torch.numProcPerNode": 2},
        {"spec.processesPerPod": 2},
        ["spec.mlPolicy.torch.numProcPerNode (2)"],
    ),
    "elastic": (
        {},
        {"spec.mlPolicy.torch.elasticPolicy": {"minNodes": 1, "maxNodes": 4, "maxRestarts": 6}},
        {"spec.elastic": {"minReplicas": 1, "maxReplicas": 4}, "spec.restart.maxRestarts": 6},
        ["elasticPolicy.minNodes (1)"],
    ),
    "suspend, deadline": (
        {"spec.suspend": True, "spec.activeDeadlineSeconds": 60},
        {},
        {"spec.suspend": True, "spec.activeDeadlineSeconds": 60},
        [],
    ),
    "managedBy": ({"spec.managedBy": "x/y"}, {}, {}, ["not carried over: spec.managedBy (x/y)"]),
    "labels": (
        {"spec.labels": {"a": "b"}, "spec.annotations": {"c": "d"}},
        {},
        {"spec.template.metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}},
        ["spec.labels: spec.template.metadata.labels"],
    ),
    "initializer": (
        {"spec.initializer": {"dataset": {"storageUri": "hf://a"}, "model": {"storageUri": "hf://b"}}},
        {},
        {},
        ["not carried over: spec.initializer.dataset", "not carried over: spec.initializer.model"],
    ),
    "podTemplateOverrides": (
        {"spec.podTemplateOverrides": [OVERRIDE]},
        {},
        {
            "spec.template.spec.serviceAccountName": "me",
            "spec.template.spec.containers[0].volumeMounts": [{"name": "data", "mountPath": "/data"}],
            "spec.template.spec.containers[0].env": [{"name": "A", "value": "runtime"}],
        },
        ["podTemplateOverrides[0]: joined with the runtime's pod template"],
    ),
    "runtimePatches": (
        {"spec.runtimePatches": [PATCH]},
        {},
        {"spec.template.spec.nodeSelector": {"gpu": "h100"}, "spec.template.metadata.labels": {"team": "ml"}},
        ["spec.runtimePatches[0].trainingRuntimeSpec"],
    ),
    "another replicated job": (
        {},
        {"spec.template.spec.replicatedJobs[1]": None}
        | {
            "spec.template.spec.replicatedJobs": [
                {"name": "dataset-initializer", "template": {"spec": {"template": {"spec": {"containers": []}}}}},
                parsed(RUNTIME)["spec"]["template"]["spec"]["replicatedJobs"][0] | {"dependsOn": [{"name": "d"}]},
            ]
        },
        {"spec.image": "registry.example/base:1"},
        ["replicatedJobs[0] (dataset-initializer)", "replicatedJobs[1].dependsOn"],
    ),
    "podGroupPolicy": (
        {},
        {"spec.podGroupPolicy": {"coscheduling": {"scheduleTimeoutSeconds": 120}}},
        {"spec.startupDeadlineSeconds": 120},
        ["scheduleTimeoutSeconds (120)"],
    ),
    "volcano": (
        {},
        {"spec.podGroupPolicy": {"volcano": {"networkTopology": {"mode": "hard"}}}},
        {},
        ["not carried over: ClusterTrainingRuntime torch-distributed: spec.podGroupPolicy"],
    ),
    "JobSet": (
        {},
        {"spec.template.spec.failurePolicy": {"maxRestarts": 4}, "spec.template.spec.network": {"subdomain": "x"}},
        {"spec.restart.maxRestarts": 4},
        ["spec.template.spec.network"],
    ),
    "Job": (
        {},
        {f"{JOB}.template.spec.backoffLimit": 1},
        {},
        ["torch-distributed: spec.template.spec.replicatedJobs[0].template.spec: one StatefulSet runs all pods"],
    ),
    "a runtime's sidecar": (
        {},
        {f"{POD}.spec.containers": [{"name": "node", "image": "a:1"}, {"name": "log", "image": "b:1"}]},
        {"spec.image": "a:1", "spec.template.spec.containers[0].name": "trainer"},
        ["containers[0].name (node): the name is now 'trainer'"],
    ),
    "an unknown field": (
        {"spec.trainer.flavour": "x"},
        {"spec.template.spec.shade": "y"},
        {},
        [
            "unknown: spec.trainer.flavour (x)",
            "unknown: ClusterTrainingRuntime torch-distributed: spec.template.spec.shade",
        ],
    ),
}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "another runtime": (
        {"spec.runtimeRef.name": "mine"},
        {},
        "kubectl get clustertrainingruntime mine -o yaml > runtime.yaml, and give --runtime runtime.yaml",
    ),
    "another kind of runtime": (
        {"spec.runtimeRef.kind": "TrainingRuntime"},
        {},
        "the TrainingRuntime torch-distributed",
    ),
    "no nodes": ({"spec.trainer.numNodes": 0}, {}, "spec.trainer.numNodes: write a whole number of 1 or more, not 0"),
    "nodes of the runtime as text": (
        {"spec.trainer": {"command": ["torchrun", "t.py"]}},
        {"spec.mlPolicy": {"numNodes": "2"}},
        "torch-distributed: spec.mlPolicy.numNodes: write a whole number of 1 or more, not '2'",
    ),
    "ranks that are no number": (
        {"spec.trainer.numProcPerNode": 1.5},
        {},
        "spec.trainer.numProcPerNode: write auto, gpu or a whole number, not 1.5",
    ),
    "no runtime": ({"spec.runtimeRef": None}, {}, "spec.runtimeRef: required"),
    "MPI": (
        {},
        {"spec.mlPolicy": {"mpi": {"numProcPerNode": 1}}},
        "spec.mlPolicy.mpi: starts its processes by other means",
    ),
    "no command": (
        {"spec.trainer.command": None},
        {},
        "spec.trainer.command: the container names no command",
    ),
    "no trainer": ({}, {"spec.template.spec.replicatedJobs": []}, "replicatedJobs: 0 of them train"),
    "torchtune": ({"spec.trainer.command": ["tune", "run", "x"]}, {}, "tune can't be converted, because torchtune"),
}


@pytest.mark.parametrize(("changes", "runtime", "fields", "texts"), CARRIED.values(), ids=CARRIED)
def test_field_is_carried_or_noted(
    changes: dict[str, Any], runtime: dict[str, Any], fields: dict[str, Any], texts: list[str]
) -> None:
    source, half = changed(TRAINJOB, changes), changed(RUNTIME, {k: v for k, v in runtime.items() if v is not None})
    draft = one(f"{half}---\n{source}")
    assert {path: at(draft.job, path) for path in fields} == fields
    for text in texts:
        assert text in notes(draft)
    assert lost(parsed(source), draft) == []


@pytest.mark.parametrize(("changes", "runtime", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_torch_training_is_refused(changes: dict[str, Any], runtime: dict[str, Any], message: str) -> None:
    half = changed(RUNTIME, runtime)
    if runtime.get("spec.mlPolicy"):
        half = changed(RUNTIME, {"spec.mlPolicy": runtime["spec.mlPolicy"]})
    with pytest.raises(InputError) as refused:
        one(f"{half}---\n{changed(TRAINJOB, changes)}")
    assert message in str(refused.value)


def test_variable_and_volume_of_the_trainjob_take_the_place_of_the_runtimes() -> None:
    pod = "spec.template.spec.replicatedJobs[0].template.spec.template.spec"
    half = changed(RUNTIME, {f"{pod}.volumes": [{"name": "v", "emptyDir": {}}]})
    variable = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}
    overrides = [{"targetJobs": [{"name": "node"}], "spec": {"volumes": [volume]}}]
    draft = one(
        f"{half}---\n{changed(TRAINJOB, {'spec.podTemplateOverrides': overrides, 'spec.trainer.env': [variable]})}"
    )
    made = draft.job["spec"]["template"]["spec"]
    assert made["volumes"] == [volume]
    assert made["containers"][0]["env"] == [variable]


def test_override_of_an_initializer_is_not_called_joined() -> None:
    overrides = [
        {"targetJobs": [{"name": "dataset-initializer"}], "spec": {"serviceAccountName": "a"}},
        {"targetJobs": [{"name": "node"}], "spec": {"serviceAccountName": "b"}},
    ]
    draft = one(f"{RUNTIME}---\n{changed(TRAINJOB, {'spec.podTemplateOverrides': overrides})}")
    assert draft.job["spec"]["template"]["spec"]["serviceAccountName"] == "b"
    lines = [str(note) for note in draft.notes if "podTemplateOverrides[0]" in note.path]
    assert len(lines) == 1
    alone = one(f"{RUNTIME}---\n{changed(TRAINJOB, {'spec.podTemplateOverrides': overrides[:1]})}")
    assert [str(note) for note in alone.notes if note.path.startswith("spec.podTemplateOverrides")] == lines
    assert lines[0].startswith("not carried over: spec.podTemplateOverrides[0]: download in the script")


def test_overrides_of_the_labelled_job_are_joined_whatever_its_name() -> None:
    (job,) = parsed(RUNTIME)["spec"]["template"]["spec"]["replicatedJobs"]
    server = {"name": "node", "template": {"spec": {"template": {"spec": {"containers": [{"name": "node"}]}}}}}
    half = changed(RUNTIME, {"spec.template.spec.replicatedJobs": [server, job | {"name": "worker"}]})
    pod = {"spec": {"template": {"spec": {"priorityClassName": "low"}}}}
    patched = [{"name": "worker", "template": pod}, {"name": "node", "template": {"spec": {"template": {"spec": {}}}}}]
    changes = {
        "spec.podTemplateOverrides": [
            {"targetJobs": [{"name": "worker"}], "spec": {"serviceAccountName": "trains"}},
            {"targetJobs": [{"name": "node"}], "spec": {"serviceAccountName": "serves"}},
        ],
        "spec.podSpecOverrides": [{"targetJobs": [{"name": "worker"}], "nodeSelector": {"gpu": "h100"}}],
        "spec.runtimePatches": [
            {"trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": patched}}}},
        ],
    }
    draft = one(f"{half}---\n{changed(TRAINJOB, changes)}")
    made = draft.job["spec"]["template"]["spec"]
    assert made["serviceAccountName"] == "trains"
    assert made["nodeSelector"] == {"gpu": "h100"}
    assert made["priorityClassName"] == "low"
    dropped = [note.path for note in draft.notes if note.how is How.NOT_CARRIED]
    assert [path for path in dropped if path.startswith("spec.")] == [
        "spec.podTemplateOverrides[1]",
        "spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[1]",
    ]


def test_runtime_of_a_second_file_is_found() -> None:
    draft = one(TRAINJOB, runtimes=runtimes(RUNTIME))
    assert draft.job["spec"]["image"] == "registry.example/base:1"


def test_file_without_a_runtime_is_no_runtime_file() -> None:
    with pytest.raises(InputError, match="holds no ClusterTrainingRuntime or TrainingRuntime"):
        runtimes(TRAINJOB)
