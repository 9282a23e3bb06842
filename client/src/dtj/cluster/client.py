"""The API calls of the cluster verbs, on plain dicts, with errors that include a remedy.

`kubernetes` reads the kubeconfig and holds the connection. Its typed models are not used,
because they drop fields that they don't know. The import is late, because `dtj run` does not need it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import yaml

from dtj.errors import Busy, ClusterError, InputError, JobNotFound, NoCluster, NotInstalled
from dtj_contract import names
from dtj_core.api.encoding import APPLY_CONTENT, apply_body
from dtj_core.plan.model import Object

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
FIELD_MANAGER = "dtj"
INSTALL_HINT = "install the chart: helm install dtj charts/dtj-operator --namespace dtj-system --create-namespace"
LOCAL_HINT = "check --kubeconfig and --context, or run the job on this machine: dtj run job.yaml"
DEFAULT_KUBECONFIG = "~/.kube/config"
# The library's loader raises any of these for a file that is no kubeconfig, because it reads
# whatever the YAML contains without checking it.
_UNREADABLE = (yaml.YAMLError, OSError, AttributeError, IndexError, KeyError, TypeError, ValueError)
BUSY = (429, 500, 502, 503, 504)
MERGE_CONTENT = "application/merge-patch+json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


class Cluster:
    """An API server, as selected by a context of a kubeconfig.

    Every call has a deadline and raises ClusterError.
    """

    def __init__(self, *, kubeconfig: str | None, context: str | None, namespace: str | None) -> None:
        import kubernetes.client  # takes half a second
        import kubernetes.config

        client: Any = kubernetes.client
        config: Any = kubernetes.config
        # Read KUBECONFIG now; the library reads it when it is imported, which may be long before.
        kubeconfig = kubeconfig or os.environ.get("KUBECONFIG") or None
        try:
            contexts, active = config.list_kube_config_contexts(kubeconfig)
            chosen = next((known for known in contexts if known["name"] == context), None) if context else active
            if chosen is None:
                available = ", ".join(known["name"] for known in contexts)
                raise InputError(f"--context {context}: not in the kubeconfig; it has {available}")
            self._api = config.new_client_from_config(config_file=kubeconfig, context=context)
            default = chosen["context"].get("namespace")
        except config.ConfigException as error:
            self._api, default = self._in_pod(client, config, error, kubeconfig or DEFAULT_KUBECONFIG), None
        except _UNREADABLE as error:
            cause = f"{type(error).__name__}: {_one_line(str(error))}"
            raise InputError(f"the kubeconfig {kubeconfig or DEFAULT_KUBECONFIG} can't be read ({cause})") from error
        self.given_namespace = namespace
        self.namespace = namespace or default or "default"
        self.host: str = self._api.configuration.host

    @staticmethod
    def _in_pod(client: Any, config: Any, why: Exception, path: str) -> Any:
        """Logs in with the pod's service account, because there is no kubeconfig."""
        try:
            config.load_incluster_config()
        except config.ConfigException:
            raise NoCluster(f"no usable kubeconfig at {path} ({_one_line(str(why))}); {LOCAL_HINT}") from why
        return client.ApiClient()

    # --- jobs -------------------------------------------------------------------------------------

    def apply(self, job: Object, namespace: str, *, force: bool) -> tuple[Object, bool]:
        """Applies the job on the server. Returns the stored job, and whether it is new.

        A field that another manager owns is a conflict.
        """
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict", "force": "true" if force else "false"}
        path = job_path(namespace, job["metadata"]["name"])
        status, text = self._call("PATCH", path, query, apply_body(job), content=APPLY_CONTENT)
        return json.loads(text), status == 201

    def merge(self, name: str, namespace: str, patch: Object) -> None:
        """Merges `patch` into the job, whoever else owns its fields. Raises JobNotFound."""
        self._call("PATCH", job_path(namespace, name), {"fieldManager": FIELD_MANAGER}, patch, content=MERGE_CONTENT)

    def get(self, name: str) -> Object:
        """Returns the job. Raises JobNotFound."""
        return self.json(job_path(self.namespace, name))

    def delete(self, name: str) -> Object:
        """Deletes the job, its children in the background, as kubectl does. Raises JobNotFound."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        _, text = self._call("DELETE", job_path(self.namespace, name), {}, body)
        answer: Object = json.loads(text)
        return answer

    def versions(self, name: str, seconds: float) -> Iterator[Object | None]:
        """Yields the job, then each new version for about `seconds`, and None once it is deleted.

        Raises JobNotFound.
        """
        job = self.get(name)
        yield job
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={name}",
            "resourceVersion": job["metadata"]["resourceVersion"],
            "timeoutSeconds": str(max(1, round(seconds))),
        }
        for line in self.lines(job_path(self.namespace), query, quiet_seconds=seconds + ANSWER_SECONDS):
            event = json.loads(line)
            if event["type"] == "ERROR":
                return  # the version is too old; the caller retries
            yield None if event["type"] == "DELETED" else event["object"]

    # --- any path ---------------------------------------------------------------------------------

    def json(self, path: str, query: dict[str, str] | None = None, *, accept: str = "application/json") -> Object:
        """Returns the object at `path`."""
        answer: Object = json.loads(self._call("GET", path, query or {}, accept=accept)[1])
        return answer

    def lines(self, path: str, query: dict[str, str], *, quiet_seconds: float) -> Iterator[str]:
        """Yields the lines of a stream until the server ends it or is silent for `quiet_seconds`."""
        import urllib3

        response = self._request("GET", path, query, None, "application/json", "*/*", quiet_seconds)
        rest = b""
        try:
            for chunk in response.response.stream(65536):
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    yield line.decode(errors="replace")
        except urllib3.exceptions.ReadTimeoutError:
            return
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise NoCluster(f"the connection to {self.host} broke: {_one_line(str(error))}") from error
        finally:
            response.response.close()
        if rest:
            yield rest.decode(errors="replace")

    def _call(
        self, method: str, path: str, query: dict[str, str], body: Object | bytes | None = None, *,
        content: str = "application/json", accept: str = "application/json",
    ) -> tuple[int, bytes]:  # fmt: skip
        response = self._request(method, path, query, body, content, accept, ANSWER_SECONDS)
        return response.status, response.read()

    def _request(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: Object | bytes | None,
        content: str,
        accept: str,
        seconds: float,
    ) -> Any:
        import urllib3
        from kubernetes.client.exceptions import ApiException

        headers = {"Accept": accept, "Content-Type": content}
        _, url, headers, _, _ = self._api.param_serialize(
            method, path, header_params=headers, auth_settings=["BearerToken"]
        )
        if query:
            url += "?" + urlencode(query)
        try:
            response = self._api.rest_client.request(
                method, url, headers, body, _request_timeout=(CONNECT_SECONDS, seconds)
            )
            if response.status < 300:
                return response
            text = response.read()
        except (urllib3.exceptions.HTTPError, OSError, ApiException) as error:
            raise NoCluster(f"no answer from {self.host} ({_cause(error)}); {LOCAL_HINT}") from error
        place = re.search(r"/namespaces/([^/]+)/", path)
        raise failure(response.status, text, self.host, place[1] if place else None)


def job_path(namespace: str | None, name: str | None = None) -> str:
    """Returns the path of one job, of the jobs of a namespace, or (None) of all jobs."""
    scope = f"/namespaces/{quote(namespace)}" if namespace else ""
    return f"/apis/{names.API_VERSION}{scope}/{names.PLURAL}" + (f"/{quote(name)}" if name else "")


def failure(status: int, text: bytes, host: str, namespace: str | None = None) -> ClusterError:
    """Returns the error for a response that is not 2xx, with a remedy."""
    try:
        response: Any = json.loads(text)
    except ValueError:
        response = {}
    message = _one_line(response.get("message") or text.decode(errors="replace")[:300])
    if status == 404 and not response.get("details"):  # unknown path: no such kind
        return NotInstalled(f"the cluster at {host} does not serve {names.KIND}; {INSTALL_HINT}")
    if status == 404 and response["details"].get("kind") == "namespaces":
        return JobNotFound(f"{message}; `kubectl get namespaces` lists the existing ones")
    if status == 404:
        where = f" in namespace {namespace}" if namespace else ""
        return JobNotFound(f"{message}{where}; `dtj get -A` lists the existing jobs")
    if status == 401:
        return ClusterError(
            f"{host} rejected your credentials ({message}); log in again, as the provider of your kubeconfig describes"
        )
    if status == 403:
        return ClusterError(f"{message}; ask the cluster's administrator for the ClusterRole edit in that namespace")
    if status == 409:
        return ClusterError(
            f"{message}; another writer owns these fields: change them there, or take them over with --force-conflicts"
        )
    error = Busy if status in BUSY else ClusterError
    return error(message or f"{host} answered HTTP {status}")


def _cause(error: BaseException) -> str:
    """Returns `Connection refused` rather than the names of four wrapped exceptions."""
    reason = getattr(error, "reason", None) or error
    return _one_line(str(reason)).rpartition(">: ")[2].rpartition("): ")[2]


def _one_line(text: str) -> str:
    return " ".join(text.split())
