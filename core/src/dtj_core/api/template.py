"""The parts of a PodTemplateSpec that our rules look at, over the types of podtypes.py. Everything else is kept as written.

The whole schema would be 800 KB of CRD; the API server checks the rest when the operator applies the StatefulSet.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, StringConstraints

from dtj_contract import names
from dtj_core.api.pod_types import AnyContainer, AnyPodSpec, Argument, Volume
from dtj_core.api.rules import OpenModel, Rule

__all__ = ["Argument", "PodTemplate", "find_trainer_container"]

ENV_PREFIX = "DTJ_"
VOLUME_PREFIX = "dtj-"


class ContainerTemplate(AnyContainer):
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"!has(self.env) || self.env.all(e, !e.name.startsWith('{ENV_PREFIX}'))",
            message=f"names that begin with {ENV_PREFIX} are set by the operator: rename the variable",
            holds=lambda self: all(not e.name.startswith(ENV_PREFIX) for e in self.env or ()),
            field="env",
        ),
        Rule(
            cel="!has(self.volumeMounts) || self.volumeMounts.all(m, m.mountPath != '/dtj' && !m.mountPath.startsWith('/dtj/'))",
            message="/dtj belongs to the operator: choose another mountPath",
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
            message=f"of several containers, name the one that trains '{names.CONTAINER}'",
            holds=lambda self: len(self.containers or ()) <= 1 or any(c.name == names.CONTAINER for c in self.containers),
            field="containers",
        ),
        Rule(
            cel=f"!has(self.initContainers) || self.initContainers.all(c, c.name != '{names.INIT_CONTAINER}')",
            message=f"the name '{names.INIT_CONTAINER}' belongs to the operator: rename the init container",
            holds=lambda self: all(c.name != names.INIT_CONTAINER for c in self.init_containers or ()),
            field="initContainers",
        ),
        Rule(
            cel=f"!has(self.volumes) || self.volumes.all(v, !v.name.startsWith('{VOLUME_PREFIX}'))",
            message=f"names that begin with '{VOLUME_PREFIX}' belong to the operator: rename the volume",
            holds=lambda self: all(not v.name.startswith(VOLUME_PREFIX) for v in self.volumes or ()),
            field="volumes",
        ),
        Rule(
            cel="!has(self.restartPolicy) || self.restartPolicy == 'Always'",
            message="leave restartPolicy out: how often a job restarts is spec.restart.maxRestarts",
            holds=lambda self: self.restart_policy in (None, "Always"),
            field="restartPolicy",
        ),
    )


class Metadata(OpenModel):
    """Labels and annotations of the pods."""

    labels: dict[str, str] | None = Field(default=None, max_length=64)
    annotations: dict[str, str] | None = None

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
    """The container of a raw pod template that trains: the one named `trainer`, or the only one; {} if there is none."""
    containers: list[dict[str, Any]] = (template.get("spec") or {}).get("containers") or []
    if len(containers) == 1:
        return containers[0]
    return next((c for c in containers if c.get("name") == names.CONTAINER), {})
