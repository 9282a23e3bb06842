"""The kinds of objects that the operator touches, and their paths in the API."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from dtj_contract import names
from dtj_core.plan.model import Object


@dataclass(frozen=True)
class Resource:
    """A kind of object: `api_version` and `kind` as in its objects, `plural` as in its path."""

    api_version: str
    kind: str
    plural: str

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """Returns the path of an object, or of the collection if `name` is None.

        Without a namespace the path covers all namespaces.
        """
        parts = ["api" if "/" not in self.api_version else "apis", self.api_version]
        if namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=""))
        if subresource is not None:
            parts.append(subresource)
        return "/" + "/".join(parts)


JOB = Resource(names.API_VERSION, names.KIND, names.PLURAL)
STATEFUL_SET = Resource("apps/v1", "StatefulSet", "statefulsets")
SERVICE = Resource("v1", "Service", "services")
SECRET = Resource("v1", "Secret", "secrets")
CLAIM = Resource("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
POD = Resource("v1", "Pod", "pods")
EVENT = Resource("events.k8s.io/v1", "Event", "events")
LEASE = Resource("coordination.k8s.io/v1", "Lease", "leases")

BY_KIND = {resource.kind: resource for resource in (JOB, STATEFUL_SET, SERVICE, SECRET, CLAIM, POD)}


def job_key(job: Object) -> tuple[str, str]:
    """Returns the job's namespace and name, its key in the queue."""
    return job["metadata"]["namespace"], job["metadata"]["name"]


def job_selector(name: str | None = None) -> str:
    """Returns the label selector of the objects that the operator created, for one job or for all."""
    ours = f"{names.LABEL_MANAGED_BY}={names.MANAGER}"
    return ours if name is None else f"{ours},{names.LABEL_JOB}={name}"
