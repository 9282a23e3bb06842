"""`dtj convert` of a PyTorchJob: where each field goes, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from dtj.convert import pytorchjob
from dtj.errors import InputError
from dtj_core.api.launcher_flags import How
from tests.unit.client.converted import PYTORCHJOB, at, changed, lost, notes, one, parsed

SPECS = "spec.pytorchReplicaSpecs"
MASTER = f"{SPECS}.Master.template"
WORKER = f"{SPECS}.Worker.template"
BOTH = (MASTER, WORKER)


def both(path: str, value: Any) -> dict[str, Any]:
    """Returns changes of Master and Worker alike."""
    return {f"{template}.{path}": value for template in BOTH}


CONTAINER = "spec.containers[0]"
GPUS = both(f"{CONTAINER}.resources", {"limits": {"nvidia.com/gpu": 4}})
TORCHRUN = both(f"{CONTAINER}.command", ["torchrun", "/app/train.py", "--epochs", "3"])

# name: (changes of the input, fields of the job, texts of its notes)
CARRIED: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "replicas": ({}, {"spec.replicas": 4}, ["Worker.replicas (3)", "Master.replicas (1)"]),
    "workers alone": ({f"{SPECS}.Master": None}, {"spec.replicas": 3}, []),
    "a master alone": ({f"{SPECS}.Worker": None}, {"spec.replicas": 1}, []),
    "no workers": ({f"{SPECS}.Worker.replicas": 0}, {"spec.replicas": 1}, []),
    "metadata": (
        {"metadata.labels": {"team": "a"}, "metadata.annotations": {"b": "c"}},
        {"metadata.namespace": "team", "metadata.labels.team": "a", "metadata.annotations.b": "c"},
        [],
    ),
    "a generated name": (
        {"metadata.name": None, "metadata.generateName": "mnist-"},
        {"metadata.name": "mnist"},
        ["metadata.generateName (mnist-)"],
    ),
    "Kueue's label": (
        {"metadata.labels": {"kueue.x-k8s.io/queue-name": "users"}},
        {"metadata.labels": None, "spec.queueName": "users"},
        ["in another form: metadata.labels.kueue.x-k8s.io/queue-name (users): spec.queueName"],
    ),
    "what the server wrote": (
        {"metadata.uid": "1", "metadata.resourceVersion": "2", "status": {"conditions": [{"type": "Running"}]}},
        {"metadata.uid": None, "status": None},
        ["not needed: metadata.uid", "not needed: status"],
    ),
    "successPolicy of all workers": (
        {"spec.successPolicy": "AllWorkers"},
        {"spec.successPolicy": None},
        ["in another form: spec.successPolicy (AllWorkers)"],
    ),
    "successPolicy of the master": (
        {"spec.successPolicy": ""},
        {"spec.successPolicy": "Rank0"},
        ["in another form: spec.successPolicy"],
    ),
    "cleanPodPolicy All": ({"spec.runPolicy.cleanPodPolicy": "All"}, {"spec.cleanPodPolicy": "All"}, []),
    "cleanPodPolicy Running": (
        {"spec.runPolicy.cleanPodPolicy": "Running"},
        {"spec.cleanPodPolicy": "All"},
        ["in another form: spec.runPolicy.cleanPodPolicy (Running)"],
    ),
    "ttl": ({"spec.runPolicy.ttlSecondsAfterFinished": 60}, {"spec.ttlSecondsAfterFinished": 60}, []),
    "deadline": ({"spec.runPolicy.activeDeadlineSeconds": 60}, {"spec.activeDeadlineSeconds": 60}, []),
    "backoffLimit": (
        {"spec.runPolicy.backoffLimit": 3},
        {"spec.restart.maxRestarts": 3},
        ["in another form: spec.runPolicy.backoffLimit (3): spec.restart.maxRestarts"],
    ),
    "suspend": ({"spec.runPolicy.suspend": True}, {"spec.suspend": True}, []),
    "managedBy": (
        {"spec.runPolicy.managedBy": "kueue.x-k8s.io/multikueue"},
        {},
        ["not carried over: spec.runPolicy.managedBy"],
    ),
    "queue": (
        {"spec.runPolicy.schedulingPolicy.queue": "gold"},
        {"spec.template.metadata.annotations": {"scheduling.volcano.sh/queue-name": "gold"}},
        ["in another form: spec.runPolicy.schedulingPolicy.queue (gold)"],
    ),
    "priorityClass": (
        {"spec.runPolicy.schedulingPolicy.priorityClass": "high"},
        {"spec.template.spec.priorityClassName": "high"},
        ["schedulingPolicy.priorityClass (high)"],
    ),
    "gang": (
        {"spec.runPolicy.schedulingPolicy": {"minAvailable": 4, "minResources": {"cpu": 8}}},
        {},
        ["not carried over: spec.runPolicy.schedulingPolicy.minAvailable (4)", "schedulingPolicy.minResources"],
    ),
    "schedule timeout": (
        {"spec.runPolicy.schedulingPolicy.scheduleTimeoutSeconds": 90},
        {"spec.startupDeadlineSeconds": 90},
        ["scheduleTimeoutSeconds (90)"],
    ),
    "an old file": ({"spec.backoffLimit": 2}, {"spec.restart.maxRestarts": 2}, ["spec.backoffLimit (2)"]),
    "restartPolicy OnFailure": (
        {f"{SPECS}.Worker.restartPolicy": "OnFailure"},
        {"spec.restart": None},
        ["Worker.restartPolicy (OnFailure)"],
    ),
    "restartPolicy Never": ({f"{SPECS}.Worker.restartPolicy": "Never"}, {"spec.restart.maxRestarts": 0}, []),
    "restartPolicy Never and a limit": (
        {f"{SPECS}.Worker.restartPolicy": "Never", "spec.runPolicy.backoffLimit": 9},
        {"spec.restart.maxRestarts": 0},
        [],
    ),
    "two limits of restarts": (
        {"spec.runPolicy.backoffLimit": 9, **both(f"{CONTAINER}.command", ["torchrun", "--max-restarts=0", "t.py"])},
        {"spec.restart.maxRestarts": 9},
        ["the largest limit of the file counts"],
    ),
    "restartPolicy ExitCode": (
        {f"{SPECS}.Worker.restartPolicy": "ExitCode"},
        {"spec.restart.rules[0]": {"action": "Fail", "exitCodePreset": "Permanent"}},
        ["Worker.restartPolicy (ExitCode)"],
    ),
    "the pods' restartPolicy": (
        both("spec.restartPolicy", "Never"),
        {"spec.template": None},
        ["not needed: spec.pytorchReplicaSpecs.Master.template.spec.restartPolicy (Never)"],
    ),
    "elastic": (
        {"spec.elasticPolicy": {"minReplicas": 2, "maxReplicas": 8, "maxRestarts": 5, "rdzvBackend": "c10d"}},
        {"spec.elastic": {"minReplicas": 2, "maxReplicas": 8}, "spec.restart.maxRestarts": 5},
        ["spec.elasticPolicy.maxRestarts (5)", "not needed: spec.elasticPolicy.rdzvBackend (c10d)"],
    ),
    "elastic with metrics": (
        {"spec.elasticPolicy": {"maxReplicas": 8, "metrics": [{"type": "Resource"}], "nProcPerNode": 2}},
        {"spec.elastic": {"minReplicas": 4, "maxReplicas": 8}, "spec.processesPerPod": 2},
        ["not carried over: spec.elasticPolicy.metrics"],
    ),
    "nprocPerNode": ({"spec.nprocPerNode": "2"}, {"spec.processesPerPod": 2}, ["spec.nprocPerNode (2)"]),
    "nprocPerNode and torchrun": ({"spec.nprocPerNode": "2", **TORCHRUN}, {"spec.processesPerPod": 2}, []),
    "torchrun, a rank for each GPU": (
        {**GPUS, **TORCHRUN},
        {"spec.processesPerPod": None, "spec.entrypoint": {"script": "/app/train.py", "args": ["--epochs", "3"]}},
        ["torchrun: the agent starts the ranks itself"],
    ),
    "Python, one rank for all GPUs": (GPUS, {"spec.processesPerPod": 1}, ["one process for 4 GPUs"]),
    "torchrun's own number": (
        {**GPUS, **both(f"{CONTAINER}.command", ["torchrun", "--nproc-per-node=2", "--max-restarts", "7", "train.py"])},
        {"spec.processesPerPod": 2, "spec.restart.maxRestarts": 7},
        ["--nproc-per-node (2)", "--max-restarts (7)"],
    ),
    "a module": (
        both(f"{CONTAINER}.command", ["python", "-m", "train.main", "--lr=1"]),
        {"spec.entrypoint": {"module": "train.main", "args": ["--lr=1"]}, "spec.template": None},
        ["(python): spec.entrypoint, which runs python3 -u"],
    ),
    "command and args": (
        {**both(f"{CONTAINER}.command", ["python3"]), **both(f"{CONTAINER}.args", ["train.py", "1"])},
        {"spec.entrypoint": {"script": "train.py", "args": ["1"]}},
        [],
    ),
    "another program": (
        both(f"{CONTAINER}.command", ["/opt/run", "-x"]),
        {"spec.entrypoint": None, "spec.template.spec.containers[0].command": ["/opt/run", "-x"]},
        [],
    ),
    "variables that the kubelet no longer knows": (
        both(f"{CONTAINER}.command", ["python3", "train.py", "--rank=$(RANK)", "a b"]),
        {
            "spec.template.spec.containers[0].command": [
                "sh",
                "-c",
                "exec python3 train.py --rank=\"$RANK\" 'a b'",
            ]
        },
        ["$(RANK) and the like are read by a shell"],
    ),
    "a shell that changes its directory twice, and redirects": (
        both(f"{CONTAINER}.command", ["sh", "-c", "cd /a && cd b && torchrun t.py > log"]),
        {"spec.entrypoint.script": "t.py", "spec.template.spec.containers[0].workingDir": "/a/b"},
        ["(> log): no shell reads the command any more"],
    ),
    "a shell that goes home": (
        both(f"{CONTAINER}.command", ["sh", "-c", "cd && torchrun t.py"]),
        {"spec.entrypoint": None},
        ["shell text stays"],
    ),
    "a Worker without pods": (
        {f"{SPECS}.Worker.replicas": 0, f"{WORKER}.{CONTAINER}.command": ["python3", "other.py"]},
        {"spec.replicas": 1, "spec.entrypoint.script": "/app/train.py"},
        [f"not carried over: {WORKER}: Worker has no pods, so nothing of its template is in the job"],
    ),
    "ranks of every processor": (
        {"spec.nprocPerNode": "cpu"},
        {"spec.processesPerPod": None},
        ["not carried over: spec.nprocPerNode (cpu): nothing counts processors here: set spec.processesPerPod"],
    ),
    "comments alone": (both(f"{CONTAINER}.command", ["sh", "-c", "# torchrun t.py"]), {"spec.entrypoint": None}, []),
    "what no shell reads": (
        {
            **both(f"{CONTAINER}.command", ["torchrun", "--nproc_per_node=$(N)", "t.py", "$HOME", "$$(N)"]),
            **both(f"{CONTAINER}.env", [{"name": "HOME", "value": "/h"}, {"name": "N", "value": "2"}]),
        },
        {"spec.processesPerPod": 2, "spec.entrypoint.args": ["$HOME", "$$(N)"]},
        [],
    ),
    "shell with a launcher": (
        both(
            f"{CONTAINER}.command", ["bash", "-c", "cd /app && export A=b && exec torchrun --nnodes=$WORLD_SIZE t.py"]
        ),
        {
            "spec.entrypoint.script": "t.py",
            "spec.template.spec.containers[0].workingDir": "/app",
            "spec.template.spec.containers[0].env": [{"name": "A", "value": "b"}],
        },
        ["the shell around the launcher is gone"],
    ),
    "shell that does more": (
        both(f"{CONTAINER}.command", ["bash", "-c", "pip install x; torchrun train.py | tee log"]),
        {"spec.entrypoint": None, "spec.template.spec.containers[0].command[0]": "bash"},
        ["shell text stays: the agent starts one launcher for each pod"],
    ),
    "a sidecar": (
        {f"{template}.spec.containers[1]": {"name": "log", "image": "log:1"} for template in ()}
        | {
            f"{template}.spec.containers": [
                {"name": "log", "image": "log:1"},
                {"name": "pytorch", "image": "t:1", "command": ["python3", "train.py"]},
            ]
            for template in BOTH
        },
        {"spec.template.spec.containers[1].name": "trainer", "spec.template.spec.containers[0].image": "log:1"},
        ["containers[1].name (pytorch): the name is now 'trainer'"],
    ),
    "a label of the workers": (
        {f"{MASTER}.metadata": {"labels": {"a": "1"}}, f"{WORKER}.metadata": {"labels": {"b": "2"}}},
        {"spec.template.metadata.labels": {"a": "1", "b": "2"}},
        ["Worker.template.metadata.labels: joined with the Master's"],
    ),
    "a port of the Master": (
        {f"{MASTER}.{CONTAINER}.ports": [{"containerPort": 23456}]},
        {"spec.template.spec.containers[0].ports": [{"containerPort": 23456}]},
        ["containers[0].ports: differs from"],
    ),
    "an unknown field": (
        {"spec.runPolicy.colour": "red"},
        {},
        ["unknown: spec.runPolicy.colour (red): this converter knows no such field"],
    ),
}
POD: dict[str, Any] = {
    "spec.nodeSelector": {"gpu": "a100"},
    "spec.tolerations": [{"key": "gpu", "operator": "Exists"}],
    "spec.affinity": {"nodeAffinity": {"x": 1}},
    "spec.imagePullSecrets": [{"name": "pull"}],
    "spec.securityContext": {"runAsUser": 1000},
    "spec.serviceAccountName": "trainer",
    "spec.initContainers": [{"name": "fetch", "image": "fetch:1"}],
    "spec.volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    "spec.hostNetwork": True,
    "spec.schedulerName": "volcano",
    "metadata.annotations": {"sidecar.istio.io/inject": "false"},
    "metadata.labels": {"a": "b"},
}
IN_CONTAINER: dict[str, Any] = {
    "env": [{"name": "A", "value": "b"}, {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
    "envFrom": [{"configMapRef": {"name": "c"}}],
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    "workingDir": "/app",
    "imagePullPolicy": "Always",
    "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
    "resources": {"requests": {"cpu": 2}, "limits": {"memory": "1Gi"}},
}
# name: (changes of the input, text of the error)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "two programs": (
        {f"{WORKER}.{CONTAINER}.command": ["python3", "worker.py"]},
        rf"{MASTER}.{CONTAINER}.command (python3 /app/train.py --epochs 3) and {WORKER}.{CONTAINER}.command"
        " (python3 worker.py) differ",
    ),
    "two images": ({f"{WORKER}.{CONTAINER}.image": "other:1"}, f"{WORKER}.{CONTAINER}.image (other:1) differ"),
    "other args": ({f"{MASTER}.{CONTAINER}.args": ["--master"]}, f"{WORKER}.{CONTAINER}.args (absent) differ"),
    "other resources": ({f"{WORKER}.{CONTAINER}.resources": {"limits": {"nvidia.com/gpu": 1}}}, "resources"),
    "other variables": ({f"{WORKER}.{CONTAINER}.env": [{"name": "A", "value": "b"}]}, f"{MASTER}.{CONTAINER}.env"),
    "other volumes": ({f"{WORKER}.spec.volumes": [{"name": "x", "emptyDir": {}}]}, f"{WORKER}.spec.volumes differ"),
    "other nodes": ({f"{MASTER}.spec.nodeSelector": {"a": "b"}}, f"{MASTER}.spec.nodeSelector and"),
    "the image's command": (both(f"{CONTAINER}.command", None), "give --command 'python3 train.py'"),
    "no pods": ({SPECS: {}}, "no pods: write Master or Worker"),
    "volumes of the container's name that differ": (
        {f"{MASTER}.spec.volumes": [{"name": "pytorch", "emptyDir": {}}], f"{WORKER}.spec.volumes": []},
        f"{MASTER}.spec.volumes and {WORKER}.spec.volumes differ",
    ),
    "a sidecar with the trainer's name": (
        {
            f"{SPECS}.Worker": None,
            f"{MASTER}.spec.containers": [
                {"name": "pytorch", "image": "a", "command": ["python3", "t.py"]},
                {"name": "trainer", "image": "b"},
            ],
        },
        "containers[1].name: 'trainer' is the name of the container that trains: write another",
    ),
    "ranks as text": (
        {"spec.nprocPerNode": "many"},
        "spec.nprocPerNode: write auto, gpu or a whole number, not 'many'",
    ),
    "another role": ({f"{SPECS}.Chief": {}}, f"{SPECS}.Chief: no replica type of a PyTorchJob"),
    "no spec": ({"spec": {}}, f"{SPECS}: required"),
    "replicas as text": (
        {f"{SPECS}.Worker.replicas": "3"},
        "Worker.replicas: write a whole number of 0 or more, not '3'",
    ),
    "a command as text": (both(f"{CONTAINER}.command", "python3 x.py"), 'write a list of texts, such as ["python3"'),
    "no container": (both("spec.containers", []), "spec.containers: write the container that trains"),
    "containers without pytorch": (
        both("spec.containers", [{"name": "a", "image": "a"}, {"name": "b", "image": "b"}]),
        "name the container that trains 'pytorch'",
    ),
    "two numbers of pods": (
        both(f"{CONTAINER}.command", ["torchrun", "--nnodes=2", "train.py"]),
        "--nnodes 2 contradicts spec.pytorchReplicaSpecs.*.replicas, which asks for 4 pods",
    ),
    "MPI": (both(f"{CONTAINER}.command", ["mpirun", "-np", "4", "python"]), "mpirun can't be converted"),
    "a name that is too long": ({"metadata.name": "n" * 60}, "metadata.name must have at most 52 characters"),
    "a name that is none of a Service": (
        {"metadata.name": "7b.train"},
        "Service is named after it: give another with --name",
    ),
    "a reserved variable": (
        both(f"{CONTAINER}.env", [{"name": "DTJ_X", "value": "1"}]),
        "are reserved by the operator",
    ),
    "no name": ({"metadata": {}}, "metadata.name: required"),
}


@pytest.mark.parametrize(("changes", "fields", "texts"), CARRIED.values(), ids=CARRIED)
def test_field_is_carried_or_noted(changes: dict[str, Any], fields: dict[str, Any], texts: list[str]) -> None:
    source = changed(PYTORCHJOB, changes)
    draft = one(source)
    assert {path: at(draft.job, path) for path in fields} == fields
    for text in texts:
        assert text in notes(draft)
    assert lost(parsed(source), draft) == []


@pytest.mark.parametrize("field", POD)
def test_field_of_the_pods_is_kept_without_a_note(field: str) -> None:
    draft = one(changed(PYTORCHJOB, both(field, POD[field])))
    assert at(draft.job, f"spec.template.{field}") == POD[field]
    assert field.split(".")[-1] not in notes(draft)


@pytest.mark.parametrize("field", IN_CONTAINER)
def test_field_of_the_container_is_kept_without_a_note(field: str) -> None:
    draft = one(changed(PYTORCHJOB, both(f"{CONTAINER}.{field}", IN_CONTAINER[field])))
    assert at(draft.job, f"spec.template.{CONTAINER}.{field}") == IN_CONTAINER[field]
    assert f"{CONTAINER}.{field}" not in notes(draft)


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_what_one_template_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        one(changed(PYTORCHJOB, changes))
    assert message in str(refused.value)


def test_command_of_the_image_is_given_with_a_flag() -> None:
    draft = one(changed(PYTORCHJOB, both(f"{CONTAINER}.command", None)), command="python3 /opt/mnist.py --a 'b c'")
    assert draft.job["spec"]["entrypoint"] == {"script": "/opt/mnist.py", "args": ["--a", "b c"]}


def test_every_field_of_the_table_that_has_a_place_has_a_text() -> None:
    assert len(pytorchjob.FIELDS) > 40
    for entry in pytorchjob.FIELDS:
        assert entry.text
        assert entry.how is not How.UNKNOWN
