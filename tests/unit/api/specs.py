"""Jobs that the API server and Python must both accept, and jobs that both must reject.

Each case has a sentence and a spec, which is merged into MINIMAL (None removes a key). A bad case
names the field that the message must name.
"""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

from tests.unit.api import specs_claims, specs_conformance, specs_elastic, specs_restart, specs_shorthands

Object = dict[str, Any]

MINIMAL: Object = {"image": "trainer:cpu", "entrypoint": {"module": "train"}}
README: Object = {
    "replicas": 3,
    "image": "dtj-trainer:cpu",
    "backend": "gloo",
    "entrypoint": {"module": "dtj_trainer.examples.digits", "args": ["--epochs", "30"]},
    "checkpoint": {"volume": {"claimName": "shared"}, "everySteps": 50, "keep": 3},
    "restart": {"maxRestarts": 10, "windowSeconds": 3600},
}


def job(spec: Object, name: str = "j", **metadata: Any) -> Object:
    """Returns a whole object, with `spec` merged into MINIMAL."""
    merged = {key: value for key, value in (MINIMAL | spec).items() if value is not None}
    return {
        "apiVersion": "training.dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name, **metadata},
        "spec": deepcopy(merged),
    }


def template(pod: Object | None = None, **container: Any) -> Object:
    """Returns a pod template with one container."""
    return {"spec": {"containers": [{"name": "trainer", **container}], **(pod or {})}}


def first(path: str) -> str:
    """Returns the field that a path begins with."""
    return re.split(r"[.[]", path)[0]


def checkpoint(**fields: Any) -> Object:
    return {"checkpoint": {"volume": {"claimName": "c"}} | fields}


TWO = [{"name": "trainer"}, {"name": "logs", "image": "l", "command": ["tail"]}]

GOOD: dict[str, Object] = {
    "the smallest job": {},
    "the job of the design": README,
    "a script instead of a module": {"entrypoint": {"script": "/app/train.py", "args": ["--lr", "1"]}},
    "the template's own command": {
        "entrypoint": None,
        "template": template(command=["python3", "train.py"], args=["-x"]),
    },
    "the template's own image": {"image": None, "template": template(image="mine:1")},
    "a template for its labels alone": {"template": {"metadata": {"labels": {"team": "a"}, "annotations": {"x": "z"}}}},
    "a template for its node selector alone": {
        "template": {"spec": {"nodeSelector": {"gpu": "a100"}, "containers": []}}
    },
    "a single container of any name": {"template": {"spec": {"containers": [{"name": "pytorch"}]}}},
    "a sidecar beside the trainer": {"template": {"spec": {"containers": TWO}}},
    "fields of the pod that nobody knows yet": {"template": template({"newIn2030": {"a": [1]}}, newInContainer=True)},
    "GPUs and an own security context": {
        "template": template(
            {
                "securityContext": {"runAsUser": 0},
                "tolerations": [{"operator": "Exists"}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            },
            resources={"limits": {"nvidia.com/gpu": 8}},
            securityContext={"capabilities": {"add": ["IPC_LOCK"]}},
            env=[{"name": "NCCL_DEBUG", "value": "INFO"}],
            volumeMounts=[{"name": "data", "mountPath": "/data"}],
        )
    },
    "numbers where a pod takes numbers, and quantities of both kinds": {
        "template": template(
            {
                "terminationGracePeriodSeconds": 60,
                "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}],
                "securityContext": {
                    "runAsUser": 1000,
                    "supplementalGroups": [1, 2],
                    "sysctls": [{"name": "a", "value": "1"}],
                },
                "affinity": {
                    "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}
                },
                "topologySpreadConstraints": [
                    {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
                ],
                "volumes": [
                    {"name": "d", "configMap": {"name": "c", "defaultMode": 420}},
                    {"name": "e", "emptyDir": {}},
                ],
            },
            resources={"limits": {"cpu": 0.5, "memory": "1Gi", "nvidia.com/gpu": 1}, "requests": {"cpu": "500m"}},
            env=[{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            ports=[{"containerPort": 80, "name": "web"}],
            livenessProbe={"httpGet": {"port": "web"}, "periodSeconds": 5},
            lifecycle={"preStop": {"exec": {"command": ["sleep", "1"]}}},
        )
    },
    "fields of the template that are null": {
        "template": {
            "metadata": None,
            "spec": {
                "securityContext": None,
                "terminationGracePeriodSeconds": None,
                "tolerations": None,
                "volumes": None,
                "initContainers": None,
                "containers": [
                    {"name": "t", "env": None, "args": None, "ports": None, "securityContext": {"capabilities": None}}
                ],
            },
        }
    },
    "restartPolicy Always": {"template": template({"restartPolicy": "Always"})},
    "a host path of the kind test": checkpoint(volume={"hostPath": {"path": "/var/lib/dtj-shared"}}),
    "a host path that is made": checkpoint(volume={"hostPath": {"path": "/x", "type": "DirectoryOrCreate"}}),
    "an NFS volume": checkpoint(volume={"source": {"nfs": {"server": "filer", "path": "/runs"}}}),
    "an own mount path": checkpoint(mountPath="/mnt/runs"),
    "a mount path with a slash at its end": checkpoint(mountPath="/mnt/runs/"),
    "a mount path that begins as the system's does": checkpoint(mountPath="/tmpfiles/.cache"),
    "a mount path in a folder of the image": checkpoint(mountPath="/usr/share/checkpoints"),
    "a mount path that hides what a training may not need": checkpoint(mountPath="/etc"),
    "the greatest numbers": {"replicas": 1024, "processesPerPod": 64, "restart": {"maxRestarts": 1000}},
    "no restarts at all": {"restart": {"maxRestarts": 0}},
    "hangs that are only reported": {"hangDetection": {"policy": "Report"}},
    "hangs after five seconds": {"hangDetection": {"minSeconds": 5}},
    "a deadline for progress": {"progressDeadlineSeconds": 10},
    "only the window of the budget": {"restart": {"windowSeconds": 60}},
    "a long grace for what has failed": {"restart": {"stopGraceSeconds": 600}},
    "a part of a second of it": {"restart": {"stopGraceSeconds": 2.5}},
    "none of it": {"restart": {"stopGraceSeconds": 0}},
    "suspended from the start": {"suspend": True},
    "all limits on its life": {"ttlSecondsAfterFinished": 0, "activeDeadlineSeconds": 1, "cleanPodPolicy": "None"},
    "a field that is null": {"processesPerPod": 2, "entrypoint": {"module": "train", "script": None}},
    "nccl without a GPU resource": {"backend": "nccl"},
    **specs_claims.GOOD,
    **specs_conformance.GOOD,
    **specs_elastic.GOOD,
    **specs_restart.GOOD,
    **specs_shorthands.GOOD,
}

# Mistakes in YAML: quotes around a number, none around text, a list for a map, a map for a list,
# text for an object.
WRONG_IN_POD: tuple[tuple[str, Any], ...] = (
    ("terminationGracePeriodSeconds", "60"),
    ("terminationGracePeriodSeconds", 1.5),
    ("activeDeadlineSeconds", "1h"),
    ("tolerations[0]", ["gpu"]),
    ("tolerations", {"operator": "Exists"}),
    ("securityContext", "restricted"),
    ("securityContext", []),
    ("nodeSelector", ["gpu"]),
    ("nodeSelector.gpu", {"gpu": True}),
    ("affinity", []),
    ("affinity.nodeAffinity", {"nodeAffinity": "required"}),
    ("topologySpreadConstraints", {"maxSkew": 1}),
    ("imagePullSecrets[0]", ["registry"]),
    ("imagePullSecrets", "registry"),
    ("hostNetwork", "true"),
    ("enableServiceLinks", "no"),
    ("automountServiceAccountToken", 0),
    ("serviceAccountName", 1),
    ("priorityClassName", ["high"]),
    ("runtimeClassName", True),
    ("volumes", {"data": {}}),
    ("volumes[0]", ["data"]),
    ("containers", {"name": "trainer"}),
    ("containers", "trainer"),
    ("initContainers[0]", ["fetch"]),
    ("initContainers", {"name": "fetch"}),
    ("hostAliases", {"ip": "10.0.0.1"}),
    ("dnsConfig", "8.8.8.8"),
)
WRONG_IN_CONTAINER: tuple[tuple[str, Any], ...] = (
    ("env", {"A": "b"}),
    ("env[0]", ["A=b"]),
    ("envFrom", {"configMapRef": {"name": "c"}}),
    ("ports[0]", [80]),
    ("ports", {"containerPort": 80}),
    ("resources", "1cpu"),
    ("resources", []),
    ("volumeMounts[0]", ["/data"]),
    ("volumeMounts", {"data": "/data"}),
    ("securityContext", "privileged"),
    ("securityContext", ["runAsUser"]),
    ("command", "python3 train.py"),
    ("args", {"lr": 1}),
    ("imagePullPolicy", True),
    ("workingDir", 1),
    ("livenessProbe", "exec"),
    ("lifecycle", []),
    ("terminationMessagePath", 1),
    ("tty", "yes"),
)
WRONG_INSIDE: dict[str, Object] = {
    "env[0].value": {"env": [{"name": "A", "value": 1}]},
    "env[0].valueFrom": {"env": [{"name": "A", "valueFrom": "secret"}]},
    "ports[0].containerPort": {"ports": [{"containerPort": "80"}]},
    "resources.limits": {"resources": {"limits": [{"cpu": 1}]}},
    "resources.requests": {"resources": {"requests": "1cpu"}},
    "securityContext.capabilities": {"securityContext": {"capabilities": ["SYS_PTRACE"]}},
    "securityContext.capabilities.add": {"securityContext": {"capabilities": {"add": "SYS_PTRACE"}}},
    "securityContext.runAsUser": {"securityContext": {"runAsUser": "root"}},
    "securityContext.privileged": {"securityContext": {"privileged": "true"}},
    "volumeMounts[0].readOnly": {"volumeMounts": [{"name": "d", "mountPath": "/d", "readOnly": "true"}]},
    "livenessProbe.periodSeconds": {"livenessProbe": {"periodSeconds": "5s"}},
}

BAD: dict[str, tuple[Object, str]] = {
    "no replicas": ({"replicas": 0}, "spec.replicas"),
    "too many replicas": ({"replicas": 1025}, "spec.replicas"),
    "replicas as text": ({"replicas": "3"}, "spec.replicas"),
    "replicas with a fraction": ({"replicas": 1.5}, "spec.replicas"),
    "no processes": ({"processesPerPod": 0}, "spec.processesPerPod"),
    "too many processes": ({"processesPerPod": 65}, "spec.processesPerPod"),
    "a backend that torch does not have": ({"backend": "nccl2"}, "spec.backend"),
    "an engine that there is not": ({"engine": "mxnet"}, "spec.engine"),
    "no engine": ({"engine": ""}, "spec.engine"),
    "a misspelt field": ({"replica": 3}, "spec.replica"),
    "a misspelt field inside": (checkpoint(every=3), "spec.checkpoint.every"),
    "no image": ({"image": None}, "spec.image"),
    "no image in the template either": (
        {"image": None, "template": template(command=["x"]), "entrypoint": None},
        "spec.image",
    ),
    "an empty image": ({"image": ""}, "spec.image"),
    "two images": ({"template": template(image="other")}, "spec.image"),
    "nothing to run": ({"entrypoint": None}, "spec.entrypoint"),
    "an empty command": ({"entrypoint": None, "template": template(command=[])}, "spec.entrypoint"),
    "arguments without a command": ({"entrypoint": None, "template": template(args=["-x"])}, "spec.entrypoint"),
    "entrypoint and command": ({"template": template(command=["python3"])}, "spec.entrypoint"),
    "entrypoint and the container's args": ({"template": template(args=["-x"])}, "spec.entrypoint"),
    "an empty entrypoint": ({"entrypoint": {}}, "spec.entrypoint"),
    "script and module": ({"entrypoint": {"module": "a", "script": "b.py"}}, "spec.entrypoint"),
    "a module that is a path": ({"entrypoint": {"module": "src/train.py"}}, "spec.entrypoint.module"),
    "a number among the arguments": (
        {"entrypoint": {"module": "a", "args": ["--epochs", 30]}},
        "spec.entrypoint.args[1]",
    ),
    "arguments as one text": ({"entrypoint": {"module": "a", "args": "--epochs 30"}}, "spec.entrypoint.args"),
    "a checkpoint without a volume": ({"checkpoint": {"keep": 1}}, "spec.checkpoint.volume"),
    "a volume of no kind": (checkpoint(volume={}), "spec.checkpoint.volume"),
    "a volume of two kinds": (
        checkpoint(volume={"claimName": "c", "hostPath": {"path": "/x"}}),
        "spec.checkpoint.volume",
    ),
    "an empty claim name": (checkpoint(volume={"claimName": ""}), "spec.checkpoint.volume.claimName"),
    "a relative host path": (checkpoint(volume={"hostPath": {"path": "x"}}), "spec.checkpoint.volume.hostPath.path"),
    "a host path that is a socket": (
        checkpoint(volume={"hostPath": {"path": "/x", "type": "Socket"}}),
        "spec.checkpoint.volume.hostPath.type",
    ),
    "an emptyDir for checkpoints": (
        checkpoint(volume={"source": {"emptyDir": {}}}),
        "spec.checkpoint.volume.source.emptyDir",
    ),
    "a source of two kinds": (checkpoint(volume={"source": {"nfs": {}, "csi": {}}}), "spec.checkpoint.volume.source"),
    "a source of no kind": (checkpoint(volume={"source": {}}), "spec.checkpoint.volume.source"),
    "a relative mount path": (checkpoint(mountPath="checkpoints"), "spec.checkpoint.mountPath"),
    "a mount path of ours": (checkpoint(mountPath="/dtj/state"), "spec.checkpoint.mountPath"),
    "a mount path of the system": (checkpoint(mountPath="/tmp"), "spec.checkpoint.mountPath"),
    **{
        f"mount path {path}": (checkpoint(mountPath=path), "spec.checkpoint.mountPath")
        for path in (
            "/",
            "/tmp/",
            "/dev/",
            "/dev/shm/",
            "/dtj/",
            *("/proc", "/proc/", "/proc/1/root"),
            *("//tmp", "/dev//shm", "/a/../tmp", "/./tmp", "/a/..", "/a:b", "//"),
        )
    },
    "a mount of the template there, but for a slash": (
        checkpoint() | {"template": template(volumeMounts=[{"name": "x", "mountPath": "/checkpoints/"}])},
        "spec.checkpoint",
    ),
    "a mount of the template there, but for a slash of ours": (
        checkpoint(mountPath="/checkpoints/")
        | {"template": template(volumeMounts=[{"name": "x", "mountPath": "/checkpoints"}])},
        "spec.checkpoint",
    ),
    "a mount path that the template uses": (
        checkpoint() | {"template": template(volumeMounts=[{"name": "x", "mountPath": "/checkpoints"}])},
        "spec.checkpoint",
    ),
    "no steps between checkpoints": (checkpoint(everySteps=0), "spec.checkpoint.everySteps"),
    "no checkpoint kept": (checkpoint(keep=0), "spec.checkpoint.keep"),
    "a negative budget": ({"restart": {"maxRestarts": -1}}, "spec.restart.maxRestarts"),
    "a budget without end": ({"restart": {"maxRestarts": 1001}}, "spec.restart.maxRestarts"),
    "more grace than ten minutes": ({"restart": {"stopGraceSeconds": 601}}, "spec.restart.stopGraceSeconds"),
    "a negative grace": ({"restart": {"stopGraceSeconds": -1}}, "spec.restart.stopGraceSeconds"),
    "grace as text": ({"restart": {"stopGraceSeconds": "30s"}}, "spec.restart.stopGraceSeconds"),
    "a policy for hangs that does not exist": ({"hangDetection": {"policy": "Kill"}}, "spec.hangDetection.policy"),
    "hangs after four seconds": ({"hangDetection": {"minSeconds": 4}}, "spec.hangDetection.minSeconds"),
    "a deadline for progress that is too short": ({"progressDeadlineSeconds": 9}, "spec.progressDeadlineSeconds"),
    "a window of no length": ({"restart": {"windowSeconds": 0}}, "spec.restart.windowSeconds"),
    **specs_claims.BAD,
    **specs_conformance.BAD,
    **specs_elastic.BAD,
    **specs_restart.BAD,
    **specs_shorthands.BAD,
    "suspend as text": ({"suspend": "yes"}, "spec.suspend"),
    "a negative TTL": ({"ttlSecondsAfterFinished": -1}, "spec.ttlSecondsAfterFinished"),
    "a deadline of no length": ({"activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds"),
    "a clean-up policy of Kubeflow's": ({"cleanPodPolicy": "Running"}, "spec.cleanPodPolicy"),
    "two containers and no trainer": (
        {"template": {"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}},
        "spec.template.spec.containers",
    ),
    "a container without a name": (
        {"template": {"spec": {"containers": [{}]}}},
        "spec.template.spec.containers[0].name",
    ),
    "a variable of ours": (
        {"template": template(env=[{"name": "A"}, {"name": "DTJ_JOB", "value": "x"}])},
        "spec.template.spec.containers[0].env",
    ),
    "a mount inside our folder": (
        {"template": template(volumeMounts=[{"name": "x", "mountPath": "/dtj/bin"}])},
        "spec.template.spec.containers[0].volumeMounts",
    ),
    "a volume named like ours": (
        {"template": template({"volumes": [{"name": "dtj-state", "emptyDir": {}}]})},
        "spec.template.spec.volumes",
    ),
    "an init container named like ours": (
        {"template": template({"initContainers": [{"name": "dtj-agent", "image": "x"}]})},
        "spec.template.spec.initContainers",
    ),
    "a restart policy of the pod": (
        {"template": template({"restartPolicy": "OnFailure"})},
        "spec.template.spec.restartPolicy",
    ),
    "our label on the pods": (
        {"template": {"metadata": {"labels": {"training.dtj.dev/job-name": "x"}}}},
        "spec.template.metadata.labels",
    ),
    "a template that is a list": ({"template": []}, "spec.template"),
    **{
        f"{path} as {value!r} in a pod": ({"template": template({first(path): value})}, f"spec.template.spec.{path}")
        for path, value in WRONG_IN_POD
    },
    **{
        f"{path} as {value!r} in a container": (
            {"template": template(**{first(path): value})},
            f"spec.template.spec.containers[0].{path}",
        )
        for path, value in WRONG_IN_CONTAINER
    },
    **{
        f"{path} of another type": ({"template": template(**fields)}, f"spec.template.spec.containers[0].{path}")
        for path, fields in WRONG_INSIDE.items()
    },
    "an init container's variable that is a number": (
        {"template": template({"initContainers": [{"name": "i", "env": [{"name": "A", "value": 1}]}]})},
        "spec.template.spec.initContainers[0].env[0].value",
    ),
    "an annotation that is a truth value": (
        {"template": {"metadata": {"annotations": {"sidecar.istio.io/inject": False}}}},
        "spec.template.metadata.annotations.sidecar.istio.io/inject",
    ),
    "a label that is a number": (
        {"template": {"metadata": {"labels": {"team": 7}}}},
        "spec.template.metadata.labels.team",
    ),
    "metadata that is text": ({"template": {"metadata": "a"}}, "spec.template.metadata"),
    "a pod spec that is a list": ({"template": {"spec": []}}, "spec.template.spec"),
    "a container that is text": (
        {"template": {"spec": {"containers": ["trainer"]}}},
        "spec.template.spec.containers[0]",
    ),
}

BAD_NAMES: dict[str, str] = {
    "a name of 53 characters": "n" * 53,
    "a name that begins with a digit": "3d-training",
    "a name with a dot": "resnet.v2",
}
