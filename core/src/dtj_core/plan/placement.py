"""Where another scheduler has placed the pods of an admitted job: labels, node selectors, tolerations, a gate.

A placement holds for one run of the pods. The StatefulSet carries it in an annotation, so that a repair renders
the same template although the flavor of the quota may have changed since.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from dtj_contract import names
from dtj_core.plan.model import Object

TOPOLOGY_GATE = "kueue.x-k8s.io/topology"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Additions to the pod template."""

    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[Object, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    gates: tuple[str, ...] = ()
    """Scheduling gates, which Kueue removes pod by pod when it has chosen the pod's place."""

    def encode(self) -> str:
        """Returns the placement as the value of the annotation; empty if it adds nothing."""
        given = {key: value for key, value in asdict(self).items() if value}
        return json.dumps(given, sort_keys=True) if given else ""


def read_placement(stateful_set: Object) -> Placement:
    """Returns the placement that a StatefulSet was created with."""
    text = (stateful_set["metadata"].get("annotations") or {}).get(names.ANNOTATION_PLACEMENT)
    try:
        given: Any = json.loads(text) if text else {}
    except ValueError:
        given = {}
    # An edit by hand may leave anything there.
    known = given if isinstance(given, dict) else {}
    return Placement(
        node_selector=_texts(known.get("node_selector")),
        tolerations=tuple(each for each in _items(known.get("tolerations")) if isinstance(each, dict)),
        labels=_texts(known.get("labels")),
        annotations=_texts(known.get("annotations")),
        gates=tuple(each for each in _items(known.get("gates")) if isinstance(each, str)),
    )


def _texts(value: Any) -> dict[str, str]:
    """Returns the pairs of a map whose values are texts."""
    return {key: text for key, text in value.items() if isinstance(text, str)} if isinstance(value, dict) else {}


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def place(template: Object, placement: Placement) -> None:
    """Adds the placement to a pod template. A node label of the user precedes one of the same key."""
    metadata, pod = template["metadata"], template["spec"]
    for part, added in (("labels", placement.labels), ("annotations", placement.annotations)):
        if added:
            metadata[part] = (metadata.get(part) or {}) | added
    if placement.node_selector:
        pod["nodeSelector"] = placement.node_selector | (pod.get("nodeSelector") or {})
    given = pod.get("tolerations") or []
    pod["tolerations"] = [*given, *(each for each in placement.tolerations if each not in given)]
    if placement.gates:
        gates = [each for each in pod.get("schedulingGates") or () if each.get("name") not in placement.gates]
        pod["schedulingGates"] = [*gates, *({"name": name} for name in placement.gates)]
