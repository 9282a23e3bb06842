"""Access to the operator's /metrics, decided by a real API server."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Callable
from typing import Any

from dtj_operator import rbac
from hack.cluster.controlplane import ControlPlane
from tests.integration.controlplane.support import SERVICE_ACCOUNT, Operator, wait_until

GROUP = "rbac.authorization.k8s.io"


def grant_in_cluster(plane: ControlPlane, name: str, rules: Any, namespace: str, account: str) -> None:
    base = f"/apis/{GROUP}/v1"
    plane.request("POST", f"{base}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
    plane.request("POST", f"{base}/clusterrolebindings", binding)


def token_of(plane: ControlPlane, namespace: str, account: str) -> str:
    """Creates a service account, and returns a token of it."""
    base = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    plane.request("POST", base, {"metadata": {"name": account}})
    answer = plane.request("POST", f"{base}/{account}/token", {"spec": {"expirationSeconds": 3600}})
    return str(answer["status"]["token"])


def status(operator: Operator, path: str = "/metrics", token: str | None = None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", operator.port(), timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={} if token is None else {"Authorization": "Bearer " + token})
        return connection.getresponse().status


def reviews(operator: Operator) -> int:
    return sum(call["objectRef"]["resource"] == "tokenreviews" for call in operator.calls())


def test_metrics_are_read_with_the_right_alone(
    plane: ControlPlane, namespace: str, start_operator: Callable[..., Operator]
) -> None:
    reader, stranger = token_of(plane, namespace, "reader"), token_of(plane, namespace, "stranger")
    operator = start_operator("--metrics-auth", "kubernetes").ready()
    assert status(operator, token=reader) == 503, "the operator itself lacks the right to ask"
    grant_in_cluster(plane, f"{namespace}:auth", rbac.rules(rbac.METRICS_RULES), namespace, SERVICE_ACCOUNT)
    wait_until("the operator may ask", lambda: status(operator, token=stranger) == 403)
    assert status(operator) == 401
    assert status(operator, token="nobody's") == 401
    rules = [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    grant_in_cluster(plane, f"{namespace}:reader", rules, namespace, "reader")
    wait_until("a right that was granted holds", lambda: status(operator, token=reader) == 200)
    asked = reviews(operator)
    assert {status(operator, token=reader) for _ in range(20)} == {200}
    assert reviews(operator) == asked, "an answer is kept"
    assert {status(operator, path) for path in ("/healthz", "/readyz")} == {200}, "the kubelet shows no token"


def test_standby_answers_too(plane: ControlPlane, namespace: str, replica: Callable[..., Operator]) -> None:
    first = replica("a", "dtj", "--metrics-auth", "kubernetes").ready()
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/dtj"
    wait_until("the first one leads", lambda: plane.request("GET", lease)["spec"].get("holderIdentity"))
    assert status(first) == 401
    second = replica("b", "dtj", "--metrics-auth", "kubernetes").ready()
    grant_in_cluster(plane, f"{namespace}:b", rbac.rules(rbac.METRICS_RULES), namespace, "b")
    stranger = token_of(plane, namespace, "stranger")
    wait_until("the standby decides", lambda: status(second, token=stranger) == 403)
