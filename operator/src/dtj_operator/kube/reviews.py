"""TokenReviews and SubjectAccessReviews: who sent a token, and what they may do."""

from __future__ import annotations

from dtj_core.plan.model import Object
from dtj_operator.kube.client import Client, RequestObserver
from dtj_operator.kube.login import Login
from dtj_operator.kube.resources import ACCESS_REVIEW, TOKEN_REVIEW, Resource

CONNECTIONS = 2


class ReviewClient(Client):
    """Asks the API server, by connections of its own. A standby asks too, because reviews change nothing."""

    def __init__(self, login: Login, on_request: RequestObserver) -> None:
        super().__init__(login, on_request, concurrency=CONNECTIONS)

    async def user(self, token: str) -> Object | None:
        """Returns the user whose token this is; None if it is nobody's. Raises KubeError."""
        status = await self._review(TOKEN_REVIEW, {"token": token})
        return status.get("user") if status.get("authenticated") is True else None

    async def may_get(self, user: Object, path: str) -> bool:
        """Returns whether the user may get a path that is no resource. Raises KubeError."""
        spec = {
            "user": user.get("username", ""),
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "nonResourceAttributes": {"path": path, "verb": "get"},
        }
        return (await self._review(ACCESS_REVIEW, spec)).get("allowed") is True

    async def _review(self, resource: Resource, spec: Object) -> Object:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
        answer = await self._call("create", resource.plural, "POST", resource.path(None), body=body)
        status: Object = answer.get("status") or {}
        return status
