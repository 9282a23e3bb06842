"""A client that records requests and answers from a dict.

The meaning of the requests is tested on a real API server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import yaml

from dtj_core.api.encoding import apply_body
from dtj_operator import errors
from dtj_operator.following.listener import Heard
from dtj_operator.kube.cache.cache import Cache
from dtj_operator.kube.cache.store import Key
from dtj_operator.kube.resources import JOB, POD, Resource, job_selector

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

    async def apply(
        self,
        resource: Resource,
        namespace: str,
        body: Any,
        *,
        subresource: str | None = None,
        force: bool = True,
    ) -> Any:
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
    ) -> Any:
        self._called("delete", resource.plural, name, {"uid": uid, "grace": grace_seconds})
        return {"kind": "Status"}


class FakeCache(Cache):
    """A cache that always shows what the client would serve, and keeps the answers that it got."""

    def __init__(self, client: FakeClient) -> None:
        self.client = client
        self.answers: list[Any] = []
        self.gone: list[str] = []
        super().__init__(client, (), Mock(), lambda key, seconds: None)  # type: ignore[arg-type]

    def job(self, key: Key) -> Any:
        return next((job for job in self._found(JOB, key[0]) if job["metadata"]["name"] == key[1]), None)

    def jobs(self) -> list[Any]:
        return list(self._found(JOB, None))

    def child(self, resource: Resource, key: Key) -> Any:
        return next((each for each in self._found(resource, key[0]) if each["metadata"]["name"] == key[1]), None)

    def pods(self, key: Key) -> tuple[Any, ...]:
        return tuple(pod for pod in self._found(POD, key[0]) if _matches(pod, job_selector(key[1])))

    def _found(self, resource: Resource, namespace: str | None) -> Iterator[Any]:
        for (plural, _), found in self.client.objects.items():
            if plural == resource.plural and namespace in (None, _namespace(found)):
                yield found

    def answer(self, resource: Resource, obj: Any) -> None:
        self.answers.append(obj)

    def deleted(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        self.gone.append(uid)


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

    async def start(self) -> None:
        """Starts nothing."""

    async def stop(self) -> None:
        """Stops nothing."""


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
