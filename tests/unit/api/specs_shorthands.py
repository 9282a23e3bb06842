"""Jobs with shorthands for the pod template, and those that contradict it. See specs.py."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


def _template(pod: Object | None = None, **container: Any) -> Object:
    return {"template": {"spec": {"containers": [{"name": "trainer", **container}], **(pod or {})}}}


EVERYTHING: Object = {
    "env": [
        {"name": "NCCL_DEBUG", "value": "INFO"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "token"}}},
    ],
    "envFrom": [{"configMapRef": {"name": "settings"}}],
    "resources": {"limits": {"cpu": 0.5, "memory": "64Gi", "nvidia.com/gpu": 8}},
    "nodeSelector": {"gpu": "a100"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "priorityClassName": "high",
    "imagePullSecrets": [{"name": "registry"}],
    "shmSize": "16Gi",
    "network": {"hostNetwork": True, "interface": "ib0,ib1", "dnsPolicy": "ClusterFirstWithHostNet"},
}
GOOD: dict[str, Object] = {
    "all shorthands without a template": EVERYTHING,
    "all shorthands beside a template": EVERYTHING
    | _template({"runtimeClassName": "nvidia"}, securityContext={"capabilities": {"add": ["IPC_LOCK"]}}),
    "shorthands that are empty": {"env": [], "tolerations": [], "nodeSelector": {}},
    "ranks of a resource": {
        "processesFrom": "aws.amazon.com/neuroncore",
        "resources": {"limits": {"aws.amazon.com/neuroncore": 2}},
        "backend": "gloo",
    },
    "ranks of processors": {"processesFrom": "cpu", "resources": {"requests": {"cpu": 4}}},
    "an interface beside other variables": {"network": {"interface": "eth0"}} | _template(env=[{"name": "A"}]),
    "a sidecar that mounts shared memory": {
        "shmSize": "1.5Gi",
        "template": {
            "spec": {
                "containers": [
                    {"name": "trainer"},
                    {"name": "x", "image": "x", "volumeMounts": [{"name": "v", "mountPath": "/dev/shm"}]},
                ],
                "volumes": [{"name": "v", "emptyDir": {}}],
            }
        },
    },
    "a sidecar with its own variables": {
        "env": [{"name": "A", "value": "1"}],
        "template": {
            "spec": {"containers": [{"name": "trainer"}, {"name": "x", "image": "x", "env": [{"name": "A"}]}]}
        },
    },
    "success of rank 0": {"successPolicy": "Rank0"},
    "an engine": {"engine": "tensorflow"},
    "the default engine": {"engine": "torch"},
    "a queue": {"queueName": "team-a.research"},
    "another controller": {"managedBy": "kueue.x-k8s.io/multikueue"},
    "the operator as the controller": {"managedBy": "training.dtj.dev/dtj-operator"},
}
BAD: dict[str, tuple[Object, str]] = {
    "variables in two places": (
        {"env": [{"name": "A", "value": "1"}]} | _template(env=[{"name": "B", "value": "2"}]),
        "spec.env",
    ),
    "sources of variables in two places": (
        {"envFrom": [{"secretRef": {"name": "a"}}]} | _template(envFrom=[{"secretRef": {"name": "b"}}]),
        "spec.envFrom",
    ),
    "resources in two places": (
        {"resources": {"limits": {"cpu": 1}}} | _template(resources={"limits": {"cpu": 2}}),
        "spec.resources",
    ),
    "node selectors in two places": (
        {"nodeSelector": {"a": "b"}} | _template({"nodeSelector": {"c": "d"}}),
        "spec.nodeSelector",
    ),
    "tolerations in two places": (
        {"tolerations": [{"key": "a"}]} | _template({"tolerations": [{"key": "b"}]}),
        "spec.tolerations",
    ),
    "priority classes in two places": (
        {"priorityClassName": "high"} | _template({"priorityClassName": "low"}),
        "spec.priorityClassName",
    ),
    "pull secrets in two places": (
        {"imagePullSecrets": [{"name": "a"}]} | _template({"imagePullSecrets": [{"name": "b"}]}),
        "spec.imagePullSecrets",
    ),
    "host network in two places": (
        {"network": {"hostNetwork": True}} | _template({"hostNetwork": False}),
        "spec.network",
    ),
    "DNS policies in two places": (
        {"network": {"dnsPolicy": "ClusterFirst"}} | _template({"dnsPolicy": "Default"}),
        "spec.network",
    ),
    "an interface in two places": (
        {"network": {"interface": "eth0"}, "env": [{"name": "NCCL_SOCKET_IFNAME", "value": "eth1"}]},
        "spec.network",
    ),
    "an interface in the template too": (
        {"network": {"interface": "eth0"}} | _template(env=[{"name": "GLOO_SOCKET_IFNAME", "value": "eth1"}]),
        "spec.network",
    ),
    "shared memory in two places": (
        {"shmSize": "1Gi"} | _template(volumeMounts=[{"name": "v", "mountPath": "/dev/shm/"}]),
        "spec.shmSize",
    ),
    "a variable of ours in the shorthand": ({"env": [{"name": "DTJ_JOB", "value": "x"}]}, "spec.env"),
    "variables as a map": ({"env": {"A": "1"}}, "spec.env"),
    "a variable that is a number": ({"env": [{"name": "A", "value": 1}]}, "spec.env[0].value"),
    "a variable without a name": ({"env": [{"value": "1"}]}, "spec.env[0].name"),
    "resources as text": ({"resources": "1cpu"}, "spec.resources"),
    "limits as a list": ({"resources": {"limits": [{"cpu": 1}]}}, "spec.resources.limits"),
    "a node selector that is a truth value": ({"nodeSelector": {"gpu": True}}, "spec.nodeSelector.gpu"),
    "a toleration that is text": ({"tolerations": ["gpu"]}, "spec.tolerations[0]"),
    "pull secrets as texts": ({"imagePullSecrets": ["registry"]}, "spec.imagePullSecrets[0]"),
    "a network of nothing": ({"network": {}}, "spec.network"),
    "a DNS policy that knows no peer": ({"network": {"dnsPolicy": "Default"}}, "spec.network.dnsPolicy"),
    "an interface with a space": ({"network": {"interface": "eth0 eth1"}}, "spec.network.interface"),
    "shared memory without a size": ({"shmSize": "big"}, "spec.shmSize"),
    "a number and a resource of ranks": ({"processesPerPod": 2, "processesFrom": "cpu"}, "spec.processesFrom"),
    "a resource that is no name": ({"processesFrom": "nvidia.com/"}, "spec.processesFrom"),
    "a queue that is no name": ({"queueName": "Team A"}, "spec.queueName"),
    "a controller without a domain": ({"managedBy": "me"}, "spec.managedBy"),
}
