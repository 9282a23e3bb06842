"""The message that the operator hands to the coordinating agent in each request for /status.

The message is JSON in one header. The request carries the job's token, so nobody else can hand
anything over. A reader ignores keys that it does not know.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from dtj_contract import names
from dtj_contract.json_numbers import finite_number

HEADER = "DTJ-Operator"
# A request's head fits names.MAX_HTTP_BYTES.
MAX_BYTES = 4096
MAX_LOST_PODS = 16
MAX_INT = 2**31 - 1
EXPLANATIONS = (names.Reason.POD_DELETED, names.Reason.POD_EVICTED, names.Reason.PREEMPTED, names.Reason.NODE_LOST)
"""Why a pod has ended."""
CAUSES = (*EXPLANATIONS, names.Reason.OOM_KILLED)
"""OOMKilled: the kernel killed the pod's container with its agent; the pod has stayed."""


class RestartBudget(NamedTuple):
    """The part of the spec that may change while the job runs. Of two, the one with the later generation holds."""

    generation: int = 0
    """metadata.generation of the job."""
    max_restarts: int = 10
    window: float = 3600.0
    """Seconds."""
    max_without_progress: int = names.MAX_WITHOUT_PROGRESS
    checkpoint_keep: Optional[int] = None
    """spec.checkpoint.keep; None if that is not known, or there is no spec.checkpoint."""

    def to_json(self) -> Dict[str, Any]:
        return {
            "generation": self.generation,
            "maxRestarts": self.max_restarts,
            "windowSeconds": self.window,
            "maxRestartsWithoutProgress": self.max_without_progress,
            **({} if self.checkpoint_keep is None else {"checkpointKeep": self.checkpoint_keep}),
        }

    @classmethod
    def from_json(cls, raw: Any) -> Optional[RestartBudget]:
        """Returns the budget in `raw`; None if a number is missing or out of bounds."""
        if not isinstance(raw, dict):
            return None
        values = []
        bounds = (("generation", 1), ("maxRestarts", 0), ("windowSeconds", 1), ("maxRestartsWithoutProgress", 1))
        for name, least in bounds:
            value = raw.get(name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= MAX_INT:
                return None
            values.append(value)
        generation, restarts, window, without_progress = values
        keep = raw.get("checkpointKeep")
        known = isinstance(keep, int) and not isinstance(keep, bool) and 1 <= keep <= MAX_INT
        return cls(int(generation), int(restarts), float(window), int(without_progress), keep if known else None)


class GroupSize(NamedTuple):
    """The number of pods that an elastic job wants now. Of two, the one with the later generation holds."""

    generation: int = 0
    """metadata.generation of the job."""
    replicas: int = 1

    def to_json(self) -> Dict[str, Any]:
        return {"generation": self.generation, "replicas": self.replicas}

    @classmethod
    def from_json(cls, raw: Any) -> Optional[GroupSize]:
        """Returns the size in `raw`; None if a number is missing or out of bounds."""
        if not isinstance(raw, dict):
            return None
        values = []
        for name in ("generation", "replicas"):
            value = raw.get(name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_INT:
                return None
            values.append(value)
        return cls(*values)


class LostPod(NamedTuple):
    """Why Kubernetes ended a pod."""

    pod: str
    address: str
    """Tells the pod from the one that replaces it."""
    reason: str
    own_fault: bool
    """The kubelet evicted it for what it used."""
    time: float = 0.0
    """Unix time of the end of the container, which may end again in the same pod; 0 of a pod that has ended."""

    @classmethod
    def from_json(cls, raw: Any) -> Optional[LostPod]:
        if not isinstance(raw, dict) or not all(isinstance(raw.get(key), str) for key in ("pod", "address", "reason")):
            return None
        if raw["reason"] not in CAUSES:
            return None
        time = finite_number(raw.get("time")) or 0.0
        return cls(raw["pod"][:253], raw["address"][:64], raw["reason"], raw.get("ownFault") is True, float(time))


class OperatorMessage(NamedTuple):
    budget: Optional[RestartBudget] = None
    lost_pods: Tuple[LostPod, ...] = ()
    size: Optional[GroupSize] = None
    """Of an elastic job."""


def encode(message: OperatorMessage) -> str:
    """Returns the header's value, which is ASCII."""
    budget = {} if message.budget is None else message.budget.to_json()
    lost: List[Dict[str, Any]] = [
        {
            "pod": each.pod,
            "address": each.address,
            "reason": each.reason,
            "ownFault": each.own_fault,
            **({"time": each.time} if each.time else {}),
        }
        for each in message.lost_pods[:MAX_LOST_PODS]
    ]
    size = {} if message.size is None else {"size": message.size.to_json()}
    while True:
        text = json.dumps({"restart": budget, "lostPods": lost, **size}, separators=(",", ":"))
        if len(text) <= MAX_BYTES or not lost:
            return text
        lost.pop()


def decode(text: str) -> OperatorMessage:
    """Returns the message in a header; what is missing or malformed is left out."""
    try:
        raw = json.loads(text) if len(text) <= MAX_BYTES else None
    except (ValueError, RecursionError):
        raw = None
    if not isinstance(raw, dict):
        return OperatorMessage()
    listed = raw.get("lostPods")
    pods = [LostPod.from_json(item) for item in (listed if isinstance(listed, list) else [])[:MAX_LOST_PODS]]
    lost = tuple(pod for pod in pods if pod is not None)
    return OperatorMessage(RestartBudget.from_json(raw.get("restart")), lost, GroupSize.from_json(raw.get("size")))
