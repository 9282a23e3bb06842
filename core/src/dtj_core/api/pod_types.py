"""Types of a pod's fields, so that `kubectl apply` rejects text where a number belongs.

Only fields that the planner reads or that people often write are here, without bounds and required
fields: the API server checks the pod completely later. A quantity may be text or any number. No
structural schema can express that, so quantities are not checked.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints

from dtj_core.api.base_model import OpenModel, without_nulls

Name = Annotated[str, StringConstraints(max_length=253)]
Label = Annotated[str, StringConstraints(max_length=253)]
Path = Annotated[str, StringConstraints(max_length=1024)]
Argument = Annotated[str, StringConstraints(max_length=65536)]
Texts = Annotated[dict[str, str], BeforeValidator(without_nulls)]
Labels = Annotated[dict[str, Label], BeforeValidator(without_nulls)]
Anything = dict[str, Any]  # an object with any fields
Objects = Annotated[list[Anything], Field(max_length=256)]


class EnvVar(OpenModel):
    name: Name
    value: str | None = None
    value_from: Anything | None = None


class VolumeMount(OpenModel):
    name: Name
    mount_path: Path
    sub_path: str | None = None
    read_only: bool | None = None


class Capabilities(OpenModel):
    add: list[str] | None = Field(default=None, max_length=64)
    drop: list[str] | None = Field(default=None, max_length=64)


class SeccompProfile(OpenModel):
    type: str | None = None


class ContainerSecurity(OpenModel):
    privileged: bool | None = None
    allow_privilege_escalation: bool | None = None
    read_only_root_filesystem: bool | None = None
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    capabilities: Capabilities | None = None
    seccomp_profile: SeccompProfile | None = None


class PodSecurity(OpenModel):
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    fs_group: int | None = None
    fs_group_change_policy: str | None = None
    supplemental_groups: list[int] | None = Field(default=None, max_length=1024)
    seccomp_profile: SeccompProfile | None = None


class Toleration(OpenModel):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None


class ContainerPort(OpenModel):
    name: str | None = None
    container_port: int | None = None
    host_port: int | None = None
    protocol: str | None = None


class Resources(OpenModel):
    limits: Anything | None = None
    requests: Anything | None = None
    claims: Objects | None = None


class Probe(OpenModel):
    initial_delay_seconds: int | None = None
    period_seconds: int | None = None
    timeout_seconds: int | None = None
    failure_threshold: int | None = None


class EmptyDir(OpenModel):
    medium: str | None = None


class ClaimVolume(OpenModel):
    claim_name: str | None = None
    read_only: bool | None = None


class HostPathVolume(OpenModel):
    path: str | None = None
    type: str | None = None


class ConfigMapVolume(OpenModel):
    name: str | None = None
    default_mode: int | None = None


class SecretVolume(OpenModel):
    secret_name: str | None = None
    default_mode: int | None = None


class NfsVolume(OpenModel):
    server: str | None = None
    path: str | None = None
    read_only: bool | None = None


class Volume(OpenModel):
    name: Name
    empty_dir: EmptyDir | None = None
    persistent_volume_claim: ClaimVolume | None = None
    host_path: HostPathVolume | None = None
    config_map: ConfigMapVolume | None = None
    secret: SecretVolume | None = None
    nfs: NfsVolume | None = None
    csi: Anything | None = None
    projected: Anything | None = None
    ephemeral: Anything | None = None


class AnyContainer(OpenModel):
    """Fields that containers, init containers and sidecars have in common."""

    name: Name
    image: Annotated[str, StringConstraints(max_length=1024)] | None = None
    image_pull_policy: str | None = None
    command: list[Argument] | None = Field(default=None, max_length=256)
    args: list[Argument] | None = Field(default=None, max_length=512)
    working_dir: str | None = None
    env: list[EnvVar] | None = Field(default=None, max_length=256)
    env_from: Objects | None = None
    ports: list[ContainerPort] | None = Field(default=None, max_length=256)
    resources: Resources | None = None
    volume_mounts: list[VolumeMount] | None = Field(default=None, max_length=128)
    security_context: ContainerSecurity | None = None
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    lifecycle: Anything | None = None
    restart_policy: str | None = None
    termination_message_path: str | None = None
    termination_message_policy: str | None = None
    stdin: bool | None = None
    tty: bool | None = None


class Affinity(OpenModel):
    node_affinity: Anything | None = None
    pod_affinity: Anything | None = None
    pod_anti_affinity: Anything | None = None


class TopologySpread(OpenModel):
    max_skew: int | None = None
    topology_key: str | None = None
    when_unsatisfiable: str | None = None
    label_selector: Anything | None = None


class LocalReference(OpenModel):
    name: str | None = None


class AnyPodSpec(OpenModel):
    """Fields of a pod that none of our rules is about."""

    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    tolerations: list[Toleration] | None = Field(default=None, max_length=256)
    node_selector: Texts | None = None
    node_name: str | None = None
    affinity: Affinity | None = None
    topology_spread_constraints: list[TopologySpread] | None = Field(default=None, max_length=64)
    scheduler_name: str | None = None
    priority_class_name: str | None = None
    priority: int | None = None
    runtime_class_name: str | None = None
    security_context: PodSecurity | None = None
    service_account_name: str | None = None
    automount_service_account_token: bool | None = None
    enable_service_links: bool | None = None
    image_pull_secrets: list[LocalReference] | None = Field(default=None, max_length=64)
    host_network: bool | None = None
    share_process_namespace: bool | None = None
    hostname: str | None = None
    subdomain: str | None = None
    host_aliases: Objects | None = None
    dns_policy: str | None = None
    dns_config: Anything | None = None
    overhead: Anything | None = None
    resource_claims: Objects | None = None
