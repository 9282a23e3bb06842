"""Cases of specs.py about spares and spec.elastic."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


def elastic(replicas: int = 3, **limits: Any) -> Object:
    return {"replicas": replicas, "elastic": {"minReplicas": 2} | limits}


GOOD: dict[str, Object] = {
    "two spares": {"replicas": 3, "spares": 2},
    "an elastic job": elastic(),
    "an elastic job at its least": elastic(2, maxReplicas=2),
    "an elastic job at its most": elastic(6, maxReplicas=6, waitSeconds=0.5, batch="PerRank", learningRate="Linear"),
}
BAD: dict[str, tuple[Object, str]] = {
    "too many spares": ({"spares": 65}, "spec.spares"),
    "no least size": ({"elastic": {"maxReplicas": 2}}, "spec.elastic.minReplicas"),
    "a least size above the largest": (elastic(minReplicas=3, maxReplicas=2), "spec.elastic.minReplicas"),
    "fewer replicas than the least": (elastic(1), "spec.replicas"),
    "more replicas than the largest": (elastic(7, maxReplicas=6), "spec.replicas"),
    "an elastic batch of another kind": (elastic(batch="global"), "spec.elastic.batch"),
}
