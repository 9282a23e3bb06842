"""Converts between the Lease objects of the API and what the election reads of them."""

from __future__ import annotations

import math

from dtj_core.plan.model import Object
from dtj_operator.kube.event_recorder import micro_time
from dtj_operator.kube.resources import LEASE
from dtj_operator.leader.election import Record


def record(lease: Object) -> Record:
    """Returns the fields that the election reads."""
    spec = lease.get("spec") or {}
    return Record(
        holder=spec.get("holderIdentity") or "",
        version=lease["metadata"]["resourceVersion"],
        seconds=float(spec.get("leaseDurationSeconds") or 0),
        transitions=spec.get("leaseTransitions") or 0,
    )


def new(namespace: str, name: str) -> Object:
    """Returns a Lease that nobody holds."""
    return {
        "apiVersion": LEASE.api_version,
        "kind": LEASE.kind,
        "metadata": {"namespace": namespace, "name": name},
        "spec": {},
    }


def held(lease: Object, holder: str, seconds: float, wall: float) -> Object:
    """Returns the lease as `holder` writes it to take or to renew it. `wall` is the Unix time."""
    spec = lease.get("spec") or {}
    time = micro_time(wall)
    spec = spec | {"holderIdentity": holder, "leaseDurationSeconds": math.ceil(seconds), "renewTime": time}
    if (lease.get("spec") or {}).get("holderIdentity") != holder:
        transitions = spec.get("leaseTransitions")
        spec |= {"acquireTime": time, "leaseTransitions": 0 if transitions is None else transitions + 1}
    return lease | {"spec": spec}


def released(lease: Object, wall: float) -> Object:
    """Returns the lease as its holder writes it to let a standby take it at once."""
    return lease | {"spec": lease["spec"] | {"holderIdentity": "", "renewTime": micro_time(wall)}}
