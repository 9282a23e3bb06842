"""Leases of coordination.k8s.io/v1, by connections of their own: no other request delays a renewal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from urllib.parse import urlencode

import aiohttp

from dtj_core.plan.model import Object
from dtj_operator import errors
from dtj_operator.kube.client import Client, RequestObserver, failure
from dtj_operator.kube.login import Login
from dtj_operator.kube.resources import LEASE

CONNECTIONS = 4
WATCH_SECONDS = 240  # the API server then ends the watch, and the next one begins
GRACE_SECONDS = 10.0  # beyond those, for a server that does not end it


class LeaseClient(Client):
    """Reads, writes and watches Leases. Every write carries the resourceVersion of what was read."""

    def __init__(self, login: Login, on_request: RequestObserver) -> None:
        super().__init__(login, on_request, concurrency=CONNECTIONS)

    async def replace(self, lease: Object, seconds: float) -> Object:
        """Replaces the lease. Raises Conflict if it is not the stored version."""
        metadata = lease["metadata"]
        path = LEASE.path(metadata["namespace"], metadata["name"])
        return await self._call("update", LEASE.plural, "PUT", path, body=lease, seconds=seconds)

    async def watch_lease(self, namespace: str, name: str) -> AsyncIterator[Object | None]:
        """Yields the lease as it is now and after each change, None after its deletion.

        Ends when the API server ends the watch. Raises KubeError.
        """
        query = {"watch": "1", "fieldSelector": f"metadata.name={name}", "timeoutSeconds": str(WATCH_SECONDS)}
        path = LEASE.path(namespace) + "?" + urlencode(query)
        try:
            async with asyncio.timeout(WATCH_SECONDS + GRACE_SECONDS):
                _, url, headers, _, _ = await self._api.param_serialize(
                    "GET", path, header_params={"Accept": "application/json"}, auth_settings=["BearerToken"]
                )
                timeout = aiohttp.ClientTimeout(total=None, sock_connect=GRACE_SECONDS)
                response = (await self._api.call_api("GET", url, headers, _request_timeout=timeout)).response
                async with response:
                    if response.status >= 300:
                        failed = failure(response.status, await response.read(), "GET", path)
                        if isinstance(failed, errors.NotAuthenticated):
                            await self._renew_login(failed)
                        raise failed
                    async for line in response.content:
                        yield _changed(json.loads(line), path)
        except TimeoutError:
            return
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise errors.Transient(f"GET {path}: {error}") from error


def _changed(event: Object, path: str) -> Object | None:
    """Returns the lease of a watch event. Raises KubeError if the event reports an error."""
    if event["type"] == "ERROR":
        status = event["object"]
        raise failure(status.get("code") or 500, json.dumps(status).encode(), "GET", path)
    return None if event["type"] == "DELETED" else dict(event["object"])
