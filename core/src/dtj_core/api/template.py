"""The parts of a PodTemplateSpec that our rules check; the rest is kept as written.

pod_types.py has the types without rules.

The whole schema would make a CRD of 800 KB. The API server checks the rest when the operator
applies the StatefulSet.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, StringConstraints

from dtj_contract import names
from dtj_core.api.base_model import OpenModel, Rule
from dtj_core.api.pod_types import AnyContainer, AnyPodSpec, Argument, Texts, Volume

__all__ = ["Argument", "PodTemplate", "find_trainer_container"]

ENV_PREFIX = "DTJ_"
VOLUME_PREFIX = "dtj-"


class ContainerTemplate(AnyContainer):
    """A container of the pod template. The operator reserves some names and paths in it."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"!has(self.env) || self.env.all(e, !e.name.startsWith('{ENV_PREFIX}'))",
            message=f"names that begin with {ENV_PREFIX} are reserved by the operator: rename the variable",
            holds=lambda self: all(not e.name.startswith(ENV_PREFIX) for e in self.env or ()),
            field="env",
        ),
        Rule(
            cel="!has(self.volumeMounts) || self.volumeMounts.all(m, m.mountPath != '/dtj' && "
            "!m.mountPath.startsWith('/dtj/'))",
            message="/dtj is reserved by the operator: choose another mountPath",
            holds=lambda self: all(
                m.mount_path != "/dtj" and not m.mount_path.startswith("/dtj/") for m in self.volume_mounts or ()
            ),
            field="volumeMounts",
        ),
    )


class PodSpec(AnyPodSpec):
    containers: list[ContainerTemplate] | None = Field(default=None, max_length=16)
    init_containers: list[AnyContainer] | None = Field(default=None, max_length=16)
    volumes: list[Volume] | None = Field(default=None, max_length=128)
    restart_policy: Annotated[str, StringConstraints(max_length=32)] | None = None

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.containers) || size(self.containers) <= 1"
            f" || self.containers.exists(c, c.name == '{names.CONTAINER}')",
            message=f"name the container that trains '{names.CONTAINER}', because the template has several",
            holds=lambda self: (
                len(self.containers or ()) <= 1 or any(c.name == names.CONTAINER for c in self.containers)
            ),
            field="containers",
        ),
        Rule(
            cel=f"!has(self.initContainers) || self.initContainers.all(c, c.name != '{names.INIT_CONTAINER}')",
            message=f"the name '{names.INIT_CONTAINER}' is reserved by the operator: rename the init container",
            holds=lambda self: all(c.name != names.INIT_CONTAINER for c in self.init_containers or ()),
            field="initContainers",
        ),
        Rule(
            cel=f"!has(self.volumes) || self.volumes.all(v, !v.name.startsWith('{VOLUME_PREFIX}'))",
            message=f"names that begin with '{VOLUME_PREFIX}' are reserved by the operator: rename the volume",
            holds=lambda self: all(not v.name.startswith(VOLUME_PREFIX) for v in self.volumes or ()),
            field="volumes",
        ),
        Rule(
            cel="!has(self.restartPolicy) || self.restartPolicy == 'Always'",
            message="remove restartPolicy: spec.restart.maxRestarts limits the restarts of a job",
            holds=lambda self: self.restart_policy in (None, "Always"),
            field="restartPolicy",
        ),
    )


class Metadata(OpenModel):
    """Labels and annotations of the pods."""

    labels: Texts | None = Field(default=None, max_length=64)
    annotations: Texts | None = None

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"!has(self.labels) || !('{names.LABEL_JOB}' in self.labels)",
            message=f"{names.LABEL_JOB} is set by the operator: remove it",
            holds=lambda self: names.LABEL_JOB not in (self.labels or {}),
            field="labels",
        ),
    )


class PodTemplate(OpenModel):
    """A Kubernetes PodTemplateSpec."""

    metadata: Metadata | None = None
    spec: PodSpec | None = None


def find_trainer_container(template: dict[str, Any]) -> dict[str, Any]:
    """Returns the trainer container of a raw pod template; {} if there is none.

    The trainer container is the one named `trainer`, or the only one.
    """
    containers: list[dict[str, Any]] = (template.get("spec") or {}).get("containers") or []
    if len(containers) == 1:
        return containers[0]
    return next((c for c in containers if c.get("name") == names.CONTAINER), {})
