"""The few API calls that the operator makes, on plain dicts.

`kubernetes.aio` logs in and holds the connections. Its typed models are not used: they drop
fields that they don't know from a user's pod template, and listing with them takes 6 times the
time and twice the memory.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any, NoReturn, Protocol
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.rest import RESTResponse

from dtj_contract import names
from dtj_core.api.encoding import APPLY_CONTENT, apply_body
from dtj_core.plan.model import Object
from dtj_operator import errors
from dtj_operator.kube.login import Login
from dtj_operator.kube.resources import ACCESS_REVIEW, LEASE, TOKEN_REVIEW, Resource

REQUEST_SECONDS = 10.0
# A hanging admission webhook has 10 s by default; the API server's response then names the webhook.
WRITE_SECONDS = 15.0
LIST_SECONDS = 30.0
CONCURRENCY = 32
PAGE = 500
# An event of a watch takes 0.1 ms of the event loop to be parsed and kept.
EVENTS_AT_ONCE = 50

_MERGE = "application/merge-patch+json"
_JSON = "application/json"

_BY_STATUS: dict[int, type[errors.KubeError]] = {
    400: errors.Invalid,
    401: errors.NotAuthenticated,
    403: errors.Forbidden,
    404: errors.ObjectNotFound,
    409: errors.Conflict,
    410: errors.Gone,
    422: errors.Invalid,
}

# Kubernetes 1.36 answers 500 to a server-side apply with an unknown field or with text for a
# number.
_NOT_TYPED = ("failed to create typed patch object", "failed to convert new object")


Objects = list[Object]
UNFENCED = (LEASE.api_version, TOKEN_REVIEW.api_version, ACCESS_REVIEW.api_version)


class RequestObserver(Protocol):
    """Called after every request. `code` is the HTTP status, or `timeout`, `unreachable`."""

    def __call__(self, verb: str, resource: str, code: str, seconds: float) -> None: ...


class Client:
    """Makes API calls.

    Each has a deadline, raises the exceptions of dtj_operator.errors, and is measured.
    """

    def __init__(
        self,
        login: Login,
        on_request: RequestObserver,
        *,
        concurrency: int = CONCURRENCY,
        fence: Callable[[], None] = lambda: None,
    ) -> None:
        """`fence` is called right before each write, and raises NotLeader if the write must not be sent."""
        self._login = login
        self._fence = fence
        self._on_request = on_request
        self._slots = asyncio.Semaphore(concurrency)
        # Watches keep their connections, so the slots alone limit the other requests.
        login.configuration.connection_pool_maxsize = 0
        # trust_env makes aiohttp look for proxies and .netrc in a thread, twice a request. The
        # proxy-url of a kubeconfig works without it.
        login.configuration.client_session_kwargs = {"trust_env": False, "trace_configs": [_trace(fence)]}
        self._api = ApiClient(login.configuration)
        self._api.user_agent = names.MANAGER

    async def close(self) -> None:
        await self._api.close()  # type: ignore[no-untyped-call]

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        """Returns the object. Without a namespace, of a kind that has none. Raises ObjectNotFound."""
        return _slim(await self._call("get", resource.plural, "GET", resource.path(namespace, name)))

    async def list(self, resource: Resource, namespace: str | None, selector: str | None = None) -> list[Object]:
        """Returns all objects that match, as of one resourceVersion.

        Raises Gone if reading the pages took longer than that version is kept.
        """
        pages = [page async for page, _ in self.pages(resource, namespace, selector)]
        return [_slim(obj) for page in pages for obj in page]

    async def pages(
        self, resource: Resource, namespace: str | None, selector: str | None = None, *, limit: int = PAGE
    ) -> AsyncIterator[tuple[Objects, str]]:
        """Yields the pages of a list, each with the resourceVersion of the whole list.

        Raises Gone if reading the pages takes longer than that version is kept.
        """
        query: dict[str, str] = {"limit": str(limit)}
        if selector is not None:
            query["labelSelector"] = selector
        while True:
            page = await self._call(
                "list", resource.plural, "GET", resource.path(namespace), query, seconds=LIST_SECONDS
            )
            yield page["items"], page["metadata"].get("resourceVersion", "")
            token = page["metadata"].get("continue")
            if not token:
                return
            query["continue"] = token

    async def watch(
        self,
        resource: Resource,
        namespace: str | None,
        selector: str | None,
        version: str,
        *,
        seconds: float,
        quiet_seconds: float,
    ) -> AsyncIterator[Objects]:
        """Yields the events since `version` as they arrive, in lists, for at most `seconds`.

        Raises Transient if nothing arrives for `quiet_seconds`, not even the bookmark of each minute,
        and Gone if the API server no longer has the changes since `version`.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        if selector is not None:
            query["labelSelector"] = selector
        path, code, began = resource.path(namespace), "unreachable", time.monotonic()
        # The API server ends the watch. A connection that outlives it is cut.
        timeout = aiohttp.ClientTimeout(
            total=seconds + quiet_seconds, sock_connect=REQUEST_SECONDS, sock_read=quiet_seconds
        )
        try:
            try:
                response = await self._send("GET", path, query, timeout)
                code = str(response.status)
            finally:
                self._on_request("watch", resource.plural, code, time.monotonic() - began)
            try:
                if response.status >= 300:
                    await self._raise_failure(response.status, await response.response.read(), "GET", path)
                rest = b""
                async for chunk in response.response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for events in few_events(lines, path):
                        yield events
            finally:
                response.response.close()
        except TimeoutError as error:
            raise errors.Transient(f"GET {path}: the watch was silent for {quiet_seconds:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise errors.Transient(f"GET {path}: {error}") from error

    async def create(self, resource: Resource, namespace: str, body: Object, *, dry_run: bool = False) -> Object:
        """Creates the object. Raises Conflict if the name is taken."""
        query = {"fieldManager": names.MANAGER} | ({"dryRun": "All"} if dry_run else {})
        path = resource.path(namespace)
        return await self._call("create", resource.plural, "POST", path, query, body, seconds=WRITE_SECONDS)

    async def apply(
        self,
        resource: Resource,
        namespace: str,
        body: Object,
        *,
        subresource: str | None = None,
        force: bool = True,
    ) -> Object:
        """Applies `body` on the server.

        Afterwards the fields of `body` hold, and fields that only our previous apply set are gone.
        Without `force` it raises Conflict if somebody else owns one of the fields.
        """
        path = resource.path(namespace, body["metadata"]["name"], subresource)
        query = {"fieldManager": names.MANAGER, "force": str(force).lower()}
        plural = resource.plural + ("/" + subresource if subresource else "")
        return await self._call(
            "apply",
            plural,
            "PATCH",
            path,
            query,
            apply_body(body),
            content=APPLY_CONTENT,
            seconds=WRITE_SECONDS,
        )

    async def merge(
        self, resource: Resource, namespace: str, name: str, patch: Object, *, subresource: str | None = None
    ) -> Object:
        """Sends a merge patch."""
        path = resource.path(namespace, name, subresource)
        plural = resource.plural + ("/" + subresource if subresource else "")
        return await self._call("patch", plural, "PATCH", path, {"fieldManager": names.MANAGER}, patch, content=_MERGE)

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, grace_seconds: int | None = None
    ) -> Object:
        """Deletes the object with this uid, its children in the background.

        Returns the object if it is left to terminate, or else the API server's Status. Raises
        ObjectNotFound, and Conflict if another object has the name.
        """
        body: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid},
        }
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        return await self._call("delete", resource.plural, "DELETE", resource.path(namespace, name), body=body)

    async def serves(self, resource: Resource) -> bool:
        """Returns whether the API server serves the kind. Discovery needs no rights on CRDs."""
        try:
            answer = await self._call("discover", resource.plural, "GET", "/apis/" + resource.api_version)
        except errors.ObjectNotFound:
            return False
        return any(served["name"] == resource.plural for served in answer["resources"])

    async def _call(
        self,
        verb: str,
        what: str,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Object | bytes | None = None,
        *,
        content: str = _JSON,
        seconds: float = REQUEST_SECONDS,
    ) -> Object:
        code = "unreachable"
        async with self._slots:
            if method != "GET":
                self._fence()
            began = time.monotonic()
            try:
                response = await self._send(method, path, query, aiohttp.ClientTimeout(total=seconds), body, content)
                code = str(response.status)
                text: bytes = await response.read()  # type: ignore[no-untyped-call]
            except TimeoutError as error:
                code = "timeout"
                raise errors.Transient(f"{method} {path}: no answer in {seconds:g} s") from error
            except (aiohttp.ClientError, OSError) as error:
                if isinstance(error.__cause__, errors.NotLeader):
                    raise error.__cause__ from error
                raise errors.Transient(f"{method} {path}: {error}") from error
            finally:
                self._on_request(verb, what, code, time.monotonic() - began)
        if response.status >= 300:
            await self._raise_failure(response.status, text, method, path)
        answer: Object = json.loads(text)
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None,
        limits: aiohttp.ClientTimeout,
        body: Object | bytes | None = None,
        content: str = _JSON,
    ) -> RESTResponse:
        """Sends a request, and returns the response before its body has arrived."""
        headers = {"Accept": _JSON, "Content-Type": content}
        _, url, headers, _, _ = await self._api.param_serialize(
            method, path, header_params=headers, query_params=[], auth_settings=["BearerToken"]
        )
        if query:
            url += "?" + urlencode(query)
        response: RESTResponse = await self._api.call_api(method, url, headers, body, _request_timeout=limits)
        return response

    async def _raise_failure(self, status: int, text: bytes, method: str, path: str) -> NoReturn:
        failed = failure(status, text, method, path)
        if isinstance(failed, errors.NotAuthenticated):
            await self._renew_login(failed)
        raise failed

    async def _renew_login(self, failed: errors.KubeError) -> None:
        """Loads a newer token of an exec plugin or a file, which the caller's next try uses.

        Raises NotAuthenticated if there is none for now. The operator was started with valid
        options, so the failure is no OptionError.
        """
        try:
            await self._login.load()
        except errors.OptionError as error:
            message = f"{failed.message}; the login could not be renewed: {error}"
            raise errors.NotAuthenticated(message, status=failed.status, reason=failed.reason) from error


def few_events(lines: list[bytes], path: str) -> Iterator[Objects]:
    """Yields the events of a chunk in short lists: 1,024 pods that start together are megabytes at once.

    Raises as `_event` does, after the events before.
    """
    for first in range(0, len(lines), EVENTS_AT_ONCE):
        if events := [_event(line, path) for line in lines[first : first + EVENTS_AT_ONCE] if line]:
            yield events


def _event(line: bytes, path: str) -> Object:
    """Returns an event of a watch. Raises Gone or Transient for an ERROR, and Transient for anything else."""
    try:
        event: Object = json.loads(line)
        kind, obj = event["type"], event["object"]
    except (ValueError, KeyError, TypeError) as error:
        raise errors.Transient(f"GET {path}: the watch sent no event: {line[:200]!r}") from error
    if kind == "ERROR":
        code = obj.get("code", 0)
        message = f"GET {path}: the watch ended: {obj.get('message') or obj}"
        raise (errors.Gone if code == 410 else errors.Transient)(message, status=code)
    return event


def _trace(fence: Callable[[], None]) -> aiohttp.TraceConfig:
    """Calls `fence` again right before the bytes of a write leave: the process may have been stopped meanwhile.

    aiohttp sends them from a task of its own, so a busy event loop delays them. Its callback for a part of the body
    comes before that part and the headers; an error there ends the request as an error of its connection.

    Leases are exempt, because their writes make the leader, and reviews, because they change nothing. The clients of
    one login share these settings.
    """

    async def started(_: object, context: SimpleNamespace, request: aiohttp.TraceRequestStartParams) -> None:
        context.fenced = request.method != "GET" and not any(f"/{api}/" in request.url.path for api in UNFENCED)

    async def sending(_: object, context: SimpleNamespace, __: object) -> None:
        if context.fenced:
            fence()

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(started)
    trace.on_connection_create_end.append(sending)
    trace.on_request_chunk_sent.append(sending)
    return trace


def _slim(obj: Object) -> Object:
    """Removes managedFields: they are half of an object, and nothing here reads them."""
    obj["metadata"].pop("managedFields", None)
    return obj


def failure(status: int, text: bytes, method: str, path: str) -> errors.KubeError:
    """Returns the exception for a response that is not 2xx."""
    try:
        response: Any = json.loads(text)
    except ValueError:
        response = None
    message, reason = "", ""
    if isinstance(response, dict):
        message, reason = str(response.get("message") or ""), str(response.get("reason") or "")
    message = message or text.decode(errors="replace")[:500] or f"HTTP {status}"
    kind = _BY_STATUS.get(status, errors.Transient)
    if status == 500 and message.startswith(_NOT_TYPED):
        kind = errors.Invalid
    return kind(f"{method} {path}: {message}" if kind is errors.Transient else message, status=status, reason=reason)
