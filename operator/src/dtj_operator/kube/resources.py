"""The kinds of objects that the operator touches, and their paths in the API."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from dtj_contract import names
from dtj_core.plan.model import Object
from dtj_core.plan.pod_group import API_VERSIONS


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
RUNTIME = Resource(names.API_VERSION, names.RUNTIME_KIND, names.RUNTIME_PLURAL)
STATEFUL_SET = Resource("apps/v1", "StatefulSet", "statefulsets")
SERVICE = Resource("v1", "Service", "services")
SECRET = Resource("v1", "Secret", "secrets")
CLAIM = Resource("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
POD = Resource("v1", "Pod", "pods")
NODE = Resource("v1", "Node", "nodes")
NETWORK_POLICY = Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
EVENT = Resource("events.k8s.io/v1", "Event", "events")
TOKEN_REVIEW = Resource("authentication.k8s.io/v1", "TokenReview", "tokenreviews")
ACCESS_REVIEW = Resource("authorization.k8s.io/v1", "SubjectAccessReview", "subjectaccessreviews")
WORKLOAD = Resource(names.KUEUE_API_VERSION, "Workload", "workloads")
FLAVOR = Resource(names.KUEUE_API_VERSION, "ResourceFlavor", "resourceflavors")
LEASE = Resource("coordination.k8s.io/v1", "Lease", "leases")

POD_GROUPS = tuple(Resource(version, "PodGroup", "podgroups") for version in API_VERSIONS.values())

BY_KIND = {
    resource.kind: resource for resource in (JOB, STATEFUL_SET, SERVICE, SECRET, CLAIM, POD, NETWORK_POLICY, WORKLOAD)
}


def resource_of(obj: Object) -> Resource:
    """Returns the kind of a child, by its apiVersion where two projects have a kind of the same name."""
    found = next((each for each in POD_GROUPS if each.api_version == obj["apiVersion"]), None)
    return found or BY_KIND[obj["kind"]]


def job_key(job: Object) -> tuple[str, str]:
    """Returns the job's namespace and name, its key in the queue."""
    return job["metadata"]["namespace"], job["metadata"]["name"]


def job_selector(name: str | None = None) -> str:
    """Returns the label selector of the objects that the operator created, for one job or for all."""
    ours = f"{names.LABEL_MANAGED_BY}={names.MANAGER}"
    return ours if name is None else f"{ours},{names.LABEL_JOB}={name}"
