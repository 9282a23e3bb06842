"""Shorthands of the spec for fields of the pod template: their rules, and their merge into it.

A shorthand and the field that it stands for exclude each other, as spec.image and the container's
image do. This needs no order of precedence, and leaves open to define one later.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from dtj_contract import names
from dtj_core.api.base_model import Model, Rule
from dtj_core.api.network import INTERFACE_VARIABLES
from dtj_core.api.template import ENV_PREFIX, find_trainer_container

if TYPE_CHECKING:
    from dtj_core.api.v1alpha1 import Spec

Template = dict[str, Any]
CONTAINER = ("env", "envFrom", "resources")
POD = ("nodeSelector", "tolerations", "priorityClassName", "imagePullSecrets")
OF_NETWORK = ("hostNetwork", "dnsPolicy")
SHM_PATHS = ("/dev/shm", "/dev/shm/")  # noqa: S108 (paths in the container)
FIELDS = (*CONTAINER, *POD, "shmSize", "network")
CONTAINERS = "has(self.template) && has(self.template.spec) && has(self.template.spec.containers)"


def trainer_has(what: str) -> str:
    """Returns the CEL condition that the trainer container has `what`."""
    chosen = f"(c.name == '{names.CONTAINER}' || size(self.template.spec.containers) == 1)"
    return f"({CONTAINERS} && self.template.spec.containers.exists(c, {chosen} && {what}))"


def merge(spec: Spec) -> Template:
    """Returns the pod template with all shorthands but `image` in it; the template's parts are not changed."""
    template = dict(spec.template or {})
    pod, container = _pod_fields(spec), _container_fields(spec)
    if pod or container:
        template["spec"] = {**(template.get("spec") or {}), **pod}
    if container:
        containers = list(template["spec"].get("containers") or [{"name": names.CONTAINER}])
        trainer = find_trainer_container({"spec": {"containers": containers}})
        template["spec"]["containers"] = [{**c, **_joined(c, container)} if c is trainer else c for c in containers]
    return template


def _pod_fields(spec: Spec) -> Template:
    given = {name: _value(spec, name) for name in POD}
    if spec.network is not None:
        given |= {name: _value(spec.network, name) for name in OF_NETWORK}
    return {name: value for name, value in given.items() if value is not None}


def _container_fields(spec: Spec) -> Template:
    given = {name: value for name in CONTAINER if (value := _value(spec, name)) is not None}
    if spec.network is not None and spec.network.interface is not None:
        variables = [{"name": name, "value": spec.network.interface} for name in INTERFACE_VARIABLES]
        given["env"] = [*given.get("env", ()), *variables]
    return given


def _joined(container: Template, given: Template) -> Template:
    """Returns the fields to set, with the container's own env, which may stand beside the interface's."""
    env = given.get("env")
    return given if env is None else {**given, "env": [*(container.get("env") or ()), *env]}


@cache
def _attributes(model: type[Model]) -> dict[str | None, str]:
    """Returns the names of a model's attributes by alias."""
    return {info.alias: name for name, info in model.model_fields.items()}


def _value(model: Model, alias: str) -> Any:
    """Returns the field as it was written."""
    value = getattr(model, _attributes(type(model))[alias])
    if isinstance(value, Model):
        return value.model_dump(by_alias=True, exclude_none=True)
    if isinstance(value, list):
        return [
            item.model_dump(by_alias=True, exclude_none=True) if isinstance(item, Model) else item for item in value
        ]
    return value


def _raw_trainer(spec: Spec) -> Template:
    return find_trainer_container(spec.template or {})


def _raw_pod(spec: Spec) -> Template:
    return (spec.template or {}).get("spec") or {}


def _not_both_in_container(field: str) -> Rule:
    return Rule(
        cel=f"!has(self.{field}) || !{trainer_has(f'has(c.{field})')}",
        message=f"set spec.{field} or {field} of the template's container, not both",
        holds=lambda self: _value(self, field) is None or _raw_trainer(self).get(field) is None,
        field=field,
    )


def _not_both_in_pod(field: str) -> Rule:
    return Rule(
        cel=f"!has(self.{field}) || !(has(self.template) && has(self.template.spec)"
        f" && has(self.template.spec.{field}))",
        message=f"set spec.{field} or template.spec.{field}, not both",
        holds=lambda self: _value(self, field) is None or _raw_pod(self).get(field) is None,
        field=field,
    )


def _not_both_of_network(field: str) -> Rule:
    return Rule(
        cel=f"!has(self.network) || !has(self.network.{field}) || !(has(self.template) && has(self.template.spec)"
        f" && has(self.template.spec.{field}))",
        message=f"set network.{field} or template.spec.{field}, not both",
        holds=lambda self: (
            self.network is None or _value(self.network, field) is None or _raw_pod(self).get(field) is None
        ),
        field="network",
    )


def _variables(spec: Spec) -> list[str]:
    """Returns the names of the variables that the user wrote."""
    own = [item.name for item in spec.env or ()]
    return [*own, *(str(item.get("name")) for item in _raw_trainer(spec).get("env") or ())]


def mount_paths(spec: Spec) -> list[str]:
    """Returns where the trainer container of the template mounts volumes, without a slash at the end."""
    return [str(mount.get("mountPath")).removesuffix("/") for mount in _raw_trainer(spec).get("volumeMounts") or ()]


_IS_INTERFACE = f"e.name in {list(INTERFACE_VARIABLES)}"
_MOUNTS_SHM = f"has(c.volumeMounts) && c.volumeMounts.exists(m, m.mountPath in {sorted(SHM_PATHS)})"
RULES = (
    *map(_not_both_in_container, CONTAINER),
    *map(_not_both_in_pod, POD),
    *map(_not_both_of_network, OF_NETWORK),
    Rule(
        cel=f"!has(self.env) || self.env.all(e, !e.name.startsWith('{ENV_PREFIX}'))",
        message=f"names that begin with {ENV_PREFIX} are reserved by the operator: rename the variable",
        holds=lambda self: all(not item.name.startswith(ENV_PREFIX) for item in self.env or ()),
        field="env",
    ),
    Rule(
        cel="!has(self.network) || !has(self.network.interface)"
        f" || ((!has(self.env) || !self.env.exists(e, {_IS_INTERFACE}))"
        f" && !{trainer_has(f'has(c.env) && c.env.exists(e, {_IS_INTERFACE})')})",
        message="set network.interface or the variables NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME, not both",
        holds=lambda self: (
            self.network is None
            or self.network.interface is None
            or not set(INTERFACE_VARIABLES) & set(_variables(self))
        ),
        field="network",
    ),
    Rule(
        cel=f"!has(self.shmSize) || !{trainer_has(_MOUNTS_SHM)}",
        message="the template's container mounts a volume at /dev/shm: remove shmSize or that mount",
        holds=lambda self: self.shm_size is None or SHM_PATHS[0] not in mount_paths(self),
        field="shmSize",
    ),
    Rule(
        cel="!has(self.processesFrom) || !has(self.processesPerPod)",
        message="set processesPerPod (a number) or processesFrom (the name of a resource), not both",
        holds=lambda self: self.processes_from is None or self.processes_per_pod is None,
        field="processesFrom",
    ),
)
