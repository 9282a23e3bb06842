"""A client that records requests and answers from a dict.

The meaning of the requests is tested on a real API server.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

from dtj_core.api.encoding import apply_body
from dtj_operator import errors
from dtj_operator.following.listener import Heard
from dtj_operator.kube.resources import Resource

Call = tuple[str, str, str]
NAMESPACE = "ns"


class FakeClient:
    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Any] = {}
        """The objects that get and list return, by plural and name.

        The namespace is NAMESPACE unless the object names another.
        """
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
        found = self.objects.get((resource.plural, name))
        if found is None or _namespace(found) != namespace:
            raise errors.ObjectNotFound("no", status=404)
        return found

    async def list(self, resource: Resource, namespace: str | None, selector: str | None = None) -> list[Any]:
        self._called("list", resource.plural, selector or "")
        found = [value for (plural, _), value in self.objects.items() if plural == resource.plural]
        return [one for one in found if namespace in (None, _namespace(one)) and _matches(one, selector)]

    async def create(self, resource: Resource, namespace: str, body: Any, *, dry_run: bool = False) -> Any:
        stored = _sent(body)
        self._called("dry-run" if dry_run else "create", resource.plural, body["metadata"]["name"], stored)
        return stored

    async def apply(self, resource: Resource, namespace: str, body: Any, *, subresource: str | None = None) -> Any:
        plural = resource.plural + ("/" + subresource if subresource else "")
        try:
            yaml.compose(apply_body(body), Loader=yaml.CSafeLoader)
        except yaml.YAMLError as error:
            raise errors.Invalid(f"error decoding YAML: {error}", status=400) from error
        stored = _sent(body)
        self._called("apply", plural, body["metadata"]["name"], stored)
        return stored

    async def merge(self, resource: Resource, namespace: str, name: str, patch: Any) -> Any:
        stored = _sent(patch)
        self._called("patch", resource.plural, name, stored)
        return stored

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, grace_seconds: int | None = None
    ) -> None:
        self._called("delete", resource.plural, name, {"uid": uid, "grace": grace_seconds})


class FakeListeners:
    """Listeners that have heard `heard` of every job, and record whom they were asked about."""

    def __init__(self, heard: Heard | None = None) -> None:
        self.heard = heard or Heard(is_known=True)
        self.ended: list[tuple[str, str]] = []
        self.kept: list[tuple[str, str]] = []

    def observe(self, job: Any, stateful_set: Any, pods: Any) -> Heard:
        return self.heard

    def end(self, key: tuple[str, str]) -> None:
        self.ended.append(key)

    def keep_only(self, keys: Any) -> None:
        self.kept = list(keys)


def _namespace(obj: Any) -> str:
    return str(obj.get("metadata", {}).get("namespace", NAMESPACE))


def _matches(obj: Any, selector: str | None) -> bool:
    labels = obj.get("metadata", {}).get("labels", {})
    return all(
        labels.get(key) == value for key, _, value in (one.partition("=") for one in (selector or "").split(",") if one)
    )


def _sent(body: Any) -> Any:
    """Returns `body` as the API server reads it.

    Surrogate pairs are joined, and an unpaired surrogate is replaced.
    """
    text = json.dumps(body, ensure_ascii=False)
    return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def job(status: Any = None, **metadata: Any) -> Any:
    meta = {"namespace": NAMESPACE, "name": "j", "uid": "u1", "generation": 1} | metadata
    return {"metadata": meta, "spec": {}} | ({} if status is None else {"status": status})
