"""The NetworkPolicy of a job: who may reach its pods.

torch's own ports (MASTER_PORT, gloo, NCCL) authenticate nobody, so only the job's own pods reach
them. The agent's port authenticates its callers, and is open to the operator and to scrapers as
well. Policies add up: another one that selects the pods opens more, and none closes what this one
opens. A pod on the node's network is subject to no policy, so a job of such pods has none.

The operator does not read policies. Where the peers of the installation change, the
annotation on the StatefulSet differs, and the policy is applied again. Jobs that were started
without a policy keep going without one until they are suspended and resumed.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from dtj_contract import names
from dtj_core.plan.job import Job
from dtj_core.plan.model import Annotate, Apply, Object, Settings

DIGITS = 12


def network_policy(job: Job, settings: Settings, metadata: Object) -> Object | None:
    """Returns the policy; None where the installation or the node's network has none.

    `metadata`: that of the policy.
    """
    spec = _spec(job, settings)
    if spec is None:
        return None
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


def policy_annotations(job: Job, settings: Settings) -> dict[str, str]:
    """Returns the annotation of a StatefulSet whose policy is applied."""
    spec = _spec(job, settings)
    return {} if spec is None else {names.ANNOTATION_NETWORK_POLICY: _digest(spec)}


def updates(job: Job, child: Object, settings: Settings, metadata: Object) -> tuple[Apply | Annotate, ...]:
    """Returns what brings the policy of a running job up to date. `child`: its StatefulSet."""
    known = (child["metadata"].get("annotations") or {}).get(names.ANNOTATION_NETWORK_POLICY)
    wanted = policy_annotations(job, settings)
    policy = network_policy(job, settings, metadata)
    if policy is None or known is None or known == wanted[names.ANNOTATION_NETWORK_POLICY]:
        return ()
    return Apply(body=policy), Annotate(stateful_set=child, annotations=wanted)


def _spec(job: Job, settings: Settings) -> Object | None:
    if settings.network_peers is None or _is_on_node_network(job):
        return None
    own = {"matchLabels": {names.LABEL_JOB: job.name}}
    ingress: list[Any] = [{"from": [{"podSelector": own}]}]
    # An empty list of peers would admit everybody.
    if settings.network_peers:
        ports = [{"port": settings.agent_port, "protocol": "TCP"}]
        ingress.append({"from": list(settings.network_peers), "ports": ports})
    return {"podSelector": own, "policyTypes": ["Ingress"], "ingress": ingress}


def _is_on_node_network(job: Job) -> bool:
    return bool((job.spec.merged_template.get("spec") or {}).get("hostNetwork"))


def _digest(spec: Object) -> str:
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:DIGITS]
