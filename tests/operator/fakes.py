"""A client that keeps what it is asked, and answers from a dict. What they mean is tested on a real one."""

from __future__ import annotations

from typing import Any

from dtj_operator import errors
from dtj_operator.kube.resources import Resource

Call = tuple[str, str, str]


class FakeClient:
    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Any] = {}
        """By plural and name: what get and list answer."""
        self.calls: list[Call] = []
        self.bodies: list[Any] = []
        self.refuse: dict[Call, errors.KubeError] = {}

    def _called(self, verb: str, plural: str, name: str, body: Any = None) -> None:
        call = (verb, plural, name)
        self.calls.append(call)
        self.bodies.append(body)
        if call in self.refuse:
            raise self.refuse[call]

    async def get(self, resource: Resource, namespace: str, name: str) -> Any:
        self._called("get", resource.plural, name)
        if (resource.plural, name) not in self.objects:
            raise errors.NotFound("no", status=404)
        return self.objects[resource.plural, name]

    async def list(self, resource: Resource, namespace: str | None, selector: str | None = None) -> list[Any]:
        self._called("list", resource.plural, selector or "")
        return [value for (plural, _), value in self.objects.items() if plural == resource.plural]

    async def create(self, resource: Resource, namespace: str, body: Any, *, dry_run: bool = False) -> Any:
        self._called("dry-run" if dry_run else "create", resource.plural, body["metadata"]["name"], body)
        return body

    async def apply(self, resource: Resource, namespace: str, body: Any, *, subresource: str | None = None) -> Any:
        plural = resource.plural + ("/" + subresource if subresource else "")
        self._called("apply", plural, body["metadata"]["name"], body)
        return body

    async def merge(self, resource: Resource, namespace: str, name: str, patch: Any) -> Any:
        self._called("patch", resource.plural, name, patch)
        return patch

    async def delete(self, resource: Resource, namespace: str, name: str, *, uid: str, grace_seconds: int | None = None) -> None:
        self._called("delete", resource.plural, name, {"uid": uid, "grace": grace_seconds})


def job(status: Any = None, **metadata: Any) -> Any:
    meta = {"namespace": "ns", "name": "j", "uid": "u1", "generation": 1} | metadata
    return {"metadata": meta, "spec": {}} | ({} if status is None else {"status": status})
