"""Holds the verdicts of the API server, of our reader and of the planner about a spec against each other."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import urllib.parse
from dataclasses import dataclass, field
from typing import Any

from dtj_contract import names
from dtj_core.api import InvalidJob, read, violations
from dtj_core.api.encoding import APPLY_CONTENT, apply_body
from dtj_core.api.shorthands import POD
from dtj_core.plan import plan
from dtj_core.plan.conditions import find_condition
from dtj_core.plan.model import Apply, Observed, Plan, Settings
from dtj_operator import errors
from dtj_operator.kube.rejections import is_permanent
from dtj_operator.kube.resources import POD_GROUPS, SERVICE, STATEFUL_SET, resource_of
from hack.cluster.controlplane import ControlPlane
from tests.unit.api.specs import MINIMAL

Object = dict[str, Any]
NOW = 1_790_000_000.0
TRIES = 5
"""Of a call that a busy API server does not answer."""
SETTINGS = Settings(agent_image="dtj-operator:test", master_key=b"key")
# `field` or "field" after `unknown field`, `Required value: field`, and the start of each cause of an Invalid.
# The cure in a message: the value to write, or what to do.
_CURE = re.compile(
    r"unknown field|supported values|Required value|must be|must have|must not|must begin|should match|should be"
    r"|at least|at most|Too long|Too many|in body|set |remove|rename|choose|name the|create a new|write |can't be"
)
_PATH = re.compile(r"(?:metadata|spec)(?:[.\[][^\s:,\"]*)?")


class Api:
    """One kept connection to the API server."""

    def __init__(self, plane: ControlPlane) -> None:
        tls: ssl.SSLContext = plane._tls
        port = urllib.parse.urlsplit(plane.url).port
        self._connection = http.client.HTTPSConnection("127.0.0.1", port, context=tls, timeout=60)

    def dry_run(self, path: str, body: Object) -> tuple[int, Object]:
        """Creates an object as a dry run, as strictly as kubectl does."""
        query = "?dryRun=All&fieldValidation=Strict"
        return self._send("POST", path + query, json.dumps(as_sent(body)).encode(), "application/json")

    def dry_apply(self, path: str, body: Object) -> tuple[int, Object]:
        """Applies an object as a dry run, as the operator does."""
        query = f"/{body['metadata']['name']}?dryRun=All&force=true&fieldManager={names.MANAGER}"
        return self._send("PATCH", path + query, apply_body(body), APPLY_CONTENT)

    def _send(self, method: str, url: str, body: bytes, content: str) -> tuple[int, Object]:
        for _ in range(TRIES):
            self._connection.request(method, url, body, {"Content-Type": content})
            answer = self._connection.getresponse()
            status, found = answer.status, json.loads(answer.read())
            if status not in (429, 500, 503, 504):
                break
        return status, found


def as_sent(value: Any) -> Any:
    """Returns the value as kubectl sends it: 3.0 in a file is 3 in the request."""
    if isinstance(value, dict):
        return {key: as_sent(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_sent(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e21 else value


@dataclass
class Verdicts:
    """The specs by verdict, and every disagreement."""

    accepted: list[tuple[str, Object]] = field(default_factory=list)
    """Name of the case, and the job as the API server would store it."""
    refused: int = 0
    rejected_children: int = 0
    """Accepted specs whose pod or StatefulSet the API server rejects."""
    defects: list[str] = field(default_factory=list)


class Conformance:
    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._api = Api(plane)
        self._namespace = namespace
        self.verdicts = Verdicts()

    def judge(self, case: str, spec: Object) -> None:
        """Lets everybody judge the spec, and keeps what they disagree about."""
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": "j", "namespace": self._namespace},
            "spec": spec,
        }
        path = f"/apis/{names.API_VERSION}/namespaces/{self._namespace}/{names.PLURAL}"
        status, answer = self._api.dry_run(path, body)
        ours = violations(body)
        if status >= 300:
            self.verdicts.refused += 1
            self._check_refusal(case, status, str(answer.get("message")), [violation.path for violation in ours])
            return
        if ours:
            self._defect(case, f"the API server accepts it, and `dtj run` does not: {ours[0]}")
        self.verdicts.accepted.append((case, answer))
        try:
            self._check_plan(case, answer)
        except Exception as error:  # noqa: BLE001 (every error of the planner is a finding)
            self._defect(case, f"the planner raises {error!r}")

    def _check_refusal(self, case: str, status: int, message: str, ours: list[str]) -> None:
        named = set(_PATH.findall(message))
        if status not in (400, 422) or not named:
            self._defect(case, f"the refusal names no field: {status} {message}")
        elif not _CURE.search(message):
            self._defect(case, f"the refusal names no cure: {message}")
        elif not ours:
            self._defect(case, f"`dtj run` accepts what the API server refuses: {message[:300]}")
        elif not any(_related(one, other) for one in named for other in ours):
            self._defect(case, f"the API server names {sorted(named)}, and `dtj run` {ours}")

    def _check_plan(self, case: str, job: Object) -> None:
        """Plans the job and what follows from its children's verdicts, until the status stays the same."""
        job = json.loads(json.dumps(job))
        job["metadata"]["generation"] = 1
        observed = Observed()
        first = self._steady(case, job, observed)
        if first is None or job["spec"].get("managedBy", names.CONTROLLER) != names.CONTROLLER:
            return
        try:
            read(job)
        except InvalidJob as error:
            condition = find_condition(first.status, names.FAILED) or find_condition(first.status, names.RUNNING) or {}
            if not any(violation.path in condition.get("message", "") for violation in error.violations):
                self._defect(case, f"unreadable, and no condition names the field: {first.status}")
            return
        rejected = self._rejected(first)
        if rejected is not None:
            self.verdicts.rejected_children += 1
            permanent, message = is_permanent(rejected), rejected.message
            seen = Observed(rejection=message) if permanent else Observed(refusal=message)
            ended = self._steady(case, job | {"status": {}}, seen)
            kind = names.FAILED if permanent else names.RUNNING
            condition = find_condition(ended.status, kind) if ended is not None else None
            if condition is None or (
                not _PATH.search(condition["message"].replace(message, ""))
                # A shorthand has the place in the job that it is short for in the pod.
                and not any(
                    f"spec.{name}" in message for name in ("checkpoint", "template", *(job["spec"].keys() & POD))
                )
            ):
                self._defect(case, f"rejected children, and no condition names the field: {message} -> {condition}")

    def _rejected(self, planned: Plan) -> errors.KubeError | None:
        """Returns what the API server answers to the children; None if it takes them."""
        for action in planned.actions:
            if not isinstance(action, Apply):
                continue
            body = action.body
            resource = resource_of(body)
            if resource in POD_GROUPS:  # served where a gang scheduler is installed
                continue
            group = "apis" if "/" in resource.api_version else "api"
            path = f"/{group}/{resource.api_version}/namespaces/{self._namespace}/{resource.plural}"
            applied = resource in (SERVICE, STATEFUL_SET)
            status, answer = (self._api.dry_apply if applied else self._api.dry_run)(path, body)
            if status < 300 and resource is STATEFUL_SET:
                template = body["spec"]["template"]
                metadata = {"labels": template["metadata"]["labels"], "name": "j-dry-run"}
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
                status, answer = self._api.dry_run(f"/api/v1/namespaces/{self._namespace}/pods", pod)
            if status >= 300:
                return (errors.Forbidden if status == 403 else errors.Invalid)(str(answer["message"]), status=status)
        return None

    def _steady(self, case: str, job: Object, observed: Observed) -> Plan | None:
        """Returns the plan once another one changes nothing; None if that never is."""
        for _ in range(5):
            planned = plan(job, observed, NOW, SETTINGS)
            if planned.status == (job.get("status") or {}):
                return planned
            job["status"] = planned.status
            first = planned
        self._defect(case, f"the status flaps: {first.status}")
        return None

    def _defect(self, case: str, text: str) -> None:
        self.verdicts.defects.append(f"{case}: {text}")


def _related(one: str, other: str) -> bool:
    """Returns whether one path is the other or contains it."""
    return one.startswith(other) or other.startswith(one)


def complete(spec: Object) -> Object:
    """Returns a spec of the tables as a whole one."""
    return {name: value for name, value in (MINIMAL | spec).items() if value is not None}
