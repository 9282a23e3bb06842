"""The pod template of a job: the user's own plus the agent, its environment and defaults.

Every field that the user wrote is kept, and a default fills in only a field that is missing. The
rules of dtj_core.api have already rejected conflicts, such as a user's volume that is named like
one of ours.
"""

from __future__ import annotations

from typing import Any

from dtj_contract import names
from dtj_core.api.claim_template import claim_name
from dtj_core.api.v1alpha1 import find_trainer_container
from dtj_core.plan.agent_environment import agent_environment
from dtj_core.plan.job import Job
from dtj_core.plan.model import AgentDelivery, Object, Settings
from dtj_core.plan.node_affinity import exclude_nodes
from dtj_core.plan.repeated_items import drop_repeated

# User "nonroot" of distroless images, and of ours.
USER_ID = 65532
GRACE_SECONDS = 30
# Until the pods of a node that does not respond are evicted. Kubernetes' own default is 300.
NODE_LOST_SECONDS = 30
NODE_LOST_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
AGENT_FOLDER_IN_OPERATOR_IMAGE = "dtj"


def pod_template(
    job: Job, settings: Settings, labels: dict[str, str], attempt_floor: int, avoided: tuple[str, ...] = ()
) -> Object:
    """Returns a PodTemplateSpec. `avoided`: the nodes that its pods are kept from."""
    template: Object = _without_nulls(job.spec.merged_template)
    metadata = template.setdefault("metadata", {})
    metadata["labels"] = (metadata.get("labels") or {}) | labels
    pod: Object = template.setdefault("spec", {})
    if not pod.get("containers"):
        pod["containers"] = [{"name": names.CONTAINER}]
    trainer = find_trainer_container(template)
    _pod_defaults(pod, trainer, settings)
    if job.spec.spares:
        _spread(pod, job.name)
    _trainer(job, settings, pod, trainer, attempt_floor)
    _pull_secrets(pod, settings)
    if settings.agent_delivery == "init-container":
        pod["initContainers"] = [_agent_installer(settings), *(pod.get("initContainers") or ())]
    pod["volumes"] = [*(pod.get("volumes") or ()), *_volumes(job, settings, trainer)]
    drop_repeated(pod)
    for container in (*pod["containers"], *(pod.get("initContainers") or ())):
        _restrict(container)
    trainer["securityContext"].setdefault("readOnlyRootFilesystem", True)
    (metadata.get("annotations") or {}).pop(names.ANNOTATION_AVOIDED_NODES, None)  # not the user's
    if avoided:
        pod["affinity"] = exclude_nodes(pod.get("affinity"), avoided)
        listed = {names.ANNOTATION_AVOIDED_NODES: ",".join(avoided)}
        metadata["annotations"] = (metadata.get("annotations") or {}) | listed
    return template


def _without_nulls(value: Any) -> Any:
    """Returns a deep copy without null fields: a null means the same as a missing field."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _pod_defaults(pod: Object, trainer: Object, settings: Settings) -> None:
    pod.setdefault("automountServiceAccountToken", False)
    pod.setdefault("enableServiceLinks", False)
    if pod.get("hostNetwork"):
        # The default for such pods is the node's resolver, which knows no peer.
        pod.setdefault("dnsPolicy", "ClusterFirstWithHostNet")
    pod.setdefault("terminationGracePeriodSeconds", GRACE_SECONDS)
    pod["tolerations"] = _tolerations(pod.get("tolerations") or [])
    security = pod["securityContext"] = dict(pod.get("securityContext") or {})
    security.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    own = trainer.get("securityContext") or {}
    user = own.get("runAsUser", security.get("runAsUser"))
    # A user who sets runAsNonRoot relies on the user that the image names.
    image_user = "runAsNonRoot" in security or "runAsNonRoot" in own
    if user != 0:
        security.setdefault("runAsNonRoot", True)
    if user is None and not image_user:
        if settings.pod_user == "fixed":
            security["runAsUser"] = USER_ID
            security.setdefault("runAsGroup", USER_ID)
        # No image knows this user. Programs that look up its name or home directory must find one.
        _env_default(trainer, "HOME", "/tmp")  # noqa: S108 (an emptyDir of the pod)
        _env_default(trainer, "USER", "trainer")
    if settings.pod_user == "fixed" or "runAsGroup" in security:
        security.setdefault("fsGroup", security.get("runAsGroup", USER_ID))
    # Otherwise the kubelet changes the owner of every checkpoint each time a pod starts.
    security.setdefault("fsGroupChangePolicy", "OnRootMismatch")


def _spread(pod: Object, job: str) -> None:
    """Spreads the pods over the nodes where there is room, unless the user has placed them.

    A spare on the node of another pod would be lost with it.
    """
    if pod.get("topologySpreadConstraints") or (pod.get("affinity") or {}).get("podAntiAffinity"):
        return
    pod["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {names.LABEL_JOB: job}},
        }
    ]


def _tolerations(given: list[Object]) -> list[Object]:
    """Adds tolerations that evict pods from a lost node soon, because the group waits meanwhile.

    stuck_pods.py decides which of these pods are removed.
    """
    given_keys = {str(toleration.get("key", "")) for toleration in given}
    ours = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": NODE_LOST_SECONDS}
        for key in NODE_LOST_TAINTS
        # A toleration without a key tolerates everything.
        if not given_keys & {key, ""}
    ]
    return [*given, *ours]


def _trainer(job: Job, settings: Settings, pod: Object, trainer: Object, attempt_floor: int) -> None:
    """Completes the trainer container.

    The agent is its first process, and the user's command is the agent's argument.
    """
    if job.spec.image:
        trainer["image"] = job.spec.image
    trainer["command"] = ["python3", names.AGENT_PATH, "--", *job.spec.command]
    trainer.pop("args", None)
    for name, value in (job.spec.launch.env if job.spec.launch is not None else {}).items():
        _env_default(trainer, name, value)
    termination_log = trainer.setdefault("terminationMessagePath", names.TERMINATION_LOG)
    trainer["env"] = [
        *agent_environment(
            job,
            settings,
            attempt_floor=attempt_floor,
            grace_seconds=pod["terminationGracePeriodSeconds"],
            termination_log=termination_log,
        ),
        *(trainer.get("env") or ()),
    ]
    ports = trainer.setdefault("ports", []) or []
    if all(port.get("containerPort") != settings.agent_port for port in ports):
        trainer["ports"] = [
            *ports,
            {"name": names.AGENT_PORT_NAME, "containerPort": settings.agent_port, "protocol": "TCP"},
        ]
    mounts = [
        _agent_mount(settings),
        {"name": names.VOLUME_STATE, "mountPath": names.STATE_DIR},
        {"name": names.VOLUME_SECRET, "mountPath": names.SECRET_DIR, "readOnly": True},
        *({"name": volume, "mountPath": path} for volume, path in _scratch(trainer).items()),
    ]
    if job.spec.checkpoint:
        mounts.append({"name": names.VOLUME_CHECKPOINT, "mountPath": job.spec.checkpoint.mount_path.rstrip("/")})
    trainer["volumeMounts"] = [*(trainer.get("volumeMounts") or ()), *mounts]


def _agent_mount(settings: Settings) -> Object:
    mount: Object = {"name": names.VOLUME_AGENT, "mountPath": names.AGENT_DIR, "readOnly": True}
    if settings.agent_delivery == "image-volume":
        mount["subPath"] = AGENT_FOLDER_IN_OPERATOR_IMAGE
    return mount


def _scratch(trainer: Object) -> dict[str, str]:
    """Returns path by volume for the directories that a script expects to be writable.

    A path at which the user mounts a volume is left out.
    """
    taken = {mount.get("mountPath", "").rstrip("/") for mount in trainer.get("volumeMounts") or ()}
    wanted = {names.VOLUME_TMP: "/tmp", names.VOLUME_SHM: "/dev/shm"}  # noqa: S108 (emptyDirs of the pod)
    return {volume: path for volume, path in wanted.items() if path not in taken}


def _volumes(job: Job, settings: Settings, trainer: Object) -> list[Object]:
    ours = {mount["name"] for mount in trainer["volumeMounts"]}
    volumes: list[Object] = [
        {"name": names.VOLUME_AGENT, **_agent_source(settings)},
        {"name": names.VOLUME_STATE, "emptyDir": {}},
        {"name": names.VOLUME_SECRET, "secret": {"secretName": job.secret_name, "defaultMode": 0o440}},
        {"name": names.VOLUME_TMP, "emptyDir": {}},
        # The default of 64 MiB starves data loaders and NCCL. This volume counts against the
        # container's memory limit.
        {"name": names.VOLUME_SHM, "emptyDir": {"medium": "Memory"} | _shm_limit(job)},
    ]
    if job.spec.checkpoint and job.spec.checkpoint.volume:
        volume = job.spec.checkpoint.volume
        source: Any
        if volume.claim_name is not None:
            source = {"persistentVolumeClaim": {"claimName": volume.claim_name}}
        elif volume.claim_template is not None:
            source = {"persistentVolumeClaim": {"claimName": claim_name(job.name)}}
        elif volume.host_path is not None:
            source = {"hostPath": volume.host_path.model_dump(by_alias=True)}
        else:
            # A rule of the API: exactly one source is set.
            assert volume.source is not None
            source = volume.source.model_dump(by_alias=True, exclude_none=True)
        volumes.append({"name": names.VOLUME_CHECKPOINT, **source})
    return [volume for volume in volumes if volume["name"] in ours]


def _agent_source(settings: Settings) -> Object:
    """Returns the source of the agent's volume."""
    if settings.agent_delivery == "init-container":
        return {"emptyDir": {}}
    image: Object = {"reference": settings.agent_image}
    if settings.image_pull_policy:
        image["pullPolicy"] = settings.image_pull_policy
    return {"image": image}


def delivery_of(template: Object) -> AgentDelivery:
    """Returns how the pods of this template, which is in the cluster, get the agent."""
    volumes = (template.get("spec") or {}).get("volumes") or ()
    found = any(volume.get("name") == names.VOLUME_AGENT and volume.get("image") for volume in volumes)
    return "image-volume" if found else "init-container"


def _shm_limit(job: Job) -> Object:
    return {} if job.spec.shm_size is None else {"sizeLimit": job.spec.shm_size}


def _agent_installer(settings: Settings) -> Object:
    """Returns the init container that installs the agent, whatever the trainer's image is."""
    installer: Object = {
        "name": names.INIT_CONTAINER,
        "image": settings.agent_image,
        "command": ["cp", f"/{AGENT_FOLDER_IN_OPERATOR_IMAGE}/agent.pyz", names.AGENT_PATH],
        "volumeMounts": [{"name": names.VOLUME_AGENT, "mountPath": names.AGENT_DIR}],
        "securityContext": {"runAsNonRoot": True, "readOnlyRootFilesystem": True},
    }
    if settings.pod_user == "fixed":
        installer["securityContext"]["runAsUser"] = USER_ID
    if settings.agent_resources:
        installer["resources"] = {kind: dict(settings.agent_resources) for kind in ("requests", "limits")}
    if settings.image_pull_policy:
        installer["imagePullPolicy"] = settings.image_pull_policy
    return installer


def _pull_secrets(pod: Object, settings: Settings) -> None:
    """Adds the secrets for the agent's image, behind those of the job."""
    given = pod.get("imagePullSecrets") or []
    named = {secret.get("name") for secret in given}
    added = [{"name": name} for name in settings.agent_pull_secrets if name not in named]
    if added:
        pod["imagePullSecrets"] = [*given, *added]


def _restrict(container: Object) -> None:
    """Applies the rest of Pod Security Standard "restricted", unless the user set otherwise."""
    security = container["securityContext"] = dict(container.get("securityContext") or {})
    capabilities = security["capabilities"] = dict(security.get("capabilities") or {})
    added = {str(capability).removeprefix("CAP_") for capability in capabilities.get("add") or ()}
    capabilities.setdefault("drop", ["ALL"])
    # The API server rejects the combination with either of these.
    if not security.get("privileged") and "SYS_ADMIN" not in added:
        security.setdefault("allowPrivilegeEscalation", False)


def _env_default(container: Object, name: str, value: str) -> None:
    env = container.get("env") or []
    if all(entry.get("name") != name for entry in env):
        container["env"] = [*env, {"name": name, "value": value}]
