"""Signs of a sick node: what a detector, or a person, has written onto it.

Detectors of broken hardware (Node Problem Detector, NVSentinel, the health agents of the clouds) report through
conditions, labels and taints of a Node, and through a cordon. The installation names the ones that are reasons to
leave a node; sick_nodes.py decides what follows from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# A detector's message may be any text, and each avoided node in a job's status has one.
MESSAGE_LENGTH = 300
CORDON = "cordon"

# Only what breaks a running training. A kubelet or a container runtime that restarts often does not.
CONDITIONS = (
    # GKE's health check of GPUs
    "XidCriticalError",
    # Node Problem Detector
    "KernelDeadlock", "ReadonlyFilesystem", "XfsShutdown", "CperHardwareErrorFatal",
    # NVSentinel, from DCGM
    "GpuMemWatch", "GpuPcieWatch", "GpuInforomWatch", "GpuNvlinkWatch", "GpuMcuWatch", "GpuPmuWatch", "GpuDriverWatch",
    # NVSentinel, from the kernel's log
    "SysLogsXIDError", "SysLogsSXIDError", "SysLogsGPUFallenOff",
    # AKS
    "GPUMissing", "XIDErrors", "NVLinkStatusInactive",
    # EKS, from DCGM
    "AcceleratedHardwareReady=False",
    # Nebius
    "NebiusGPUError",
)  # fmt: skip
LABELS = (
    "dgxc.nvidia.com/nvsentinel-state=quarantined",
    "dgxc.nvidia.com/nvsentinel-state=draining",
    "sagemaker.amazonaws.com/node-health-status=UnschedulablePendingReplacement",
    "sagemaker.amazonaws.com/node-health-status=UnschedulablePendingReboot",
)


class Sign(NamedTuple):
    """One sign of one node."""

    name: str
    """Name of the sign, equal on all nodes, so that the nodes of one detector can be counted."""
    message: str
    """The node's own text."""


@dataclass(frozen=True, kw_only=True)
class SickNode:
    signs: tuple[Sign, ...]
    takes_pods: bool = True
    """False of a node that is cordoned: the scheduler itself avoids it."""


@dataclass(frozen=True, kw_only=True)
class NodeHealth:
    """The cluster's nodes, as far as jobs may have to leave some of them."""

    total: int = 0
    """Number of all nodes."""
    sick: Mapping[str, SickNode] = field(default_factory=dict)
    """The nodes with a sign, by name."""
    in_use: frozenset[str] = frozenset()
    """The sick nodes that pods of any job are on. Empty if this job has no pod on one."""
    begun: Mapping[str, float] = field(default_factory=dict)
    """Nodes that jobs have begun to leave, with the Unix time at which the last one did. Empty as above."""


@dataclass(frozen=True, kw_only=True)
class SickNodeSettings:
    """Decisions of an installation about sick nodes."""

    conditions: tuple[str, ...] = CONDITIONS
    """Types of conditions, with the status that is a sign: `Type` (True) or `Type=Status`."""
    labels: tuple[str, ...] = LABELS
    """`key=value`, or `key` for any value."""
    taints: tuple[str, ...] = ()
    """As labels. The effect does not matter."""
    cordon: bool = True
    """Whether a cordon is a sign."""
    max_percent: int = 20
    """Largest share of all nodes that may be sick; a sign on more nodes is not believed."""
    interval_seconds: float = 60.0
    """Shortest pause between two nodes that jobs begin to leave."""
    job_interval_seconds: float = 600.0
    """Shortest pause between two moves of one job."""


def read_signs(node: Mapping[str, Any], settings: SickNodeSettings) -> tuple[Sign, ...]:
    """Returns the signs of a Node as the API server has it, in the order of the settings."""
    metadata, spec, status = (node.get(key) or {} for key in ("metadata", "spec", "status"))
    found = []
    conditions = {c.get("type"): c for c in status.get("conditions") or ()}
    for kind, wanted in _pairs(settings.conditions):
        condition = conditions.get(kind) or {}
        if condition.get("status") == (wanted or "True"):
            found.append(Sign(f"condition {kind}", _message_of_condition(condition)))
    labels = metadata.get("labels") or {}
    for key, wanted in _pairs(settings.labels):
        if key in labels and wanted in ("", labels[key]):
            found.append(Sign(f"label {key}", _short(f"label {key}={labels[key]}")))
    for key, wanted in _pairs(settings.taints):
        for taint in spec.get("taints") or ():
            value = str(taint.get("value") or "")
            if taint.get("key") == key and wanted in ("", value):
                message = f"taint {key}{'=' if value else ''}{value}:{taint.get('effect')}"
                found.append(Sign(f"taint {key}", _short(message)))
    if settings.cordon and spec.get("unschedulable"):
        found.append(Sign(CORDON, "it is cordoned"))
    return tuple(found)


def read_node(node: Mapping[str, Any], settings: SickNodeSettings) -> SickNode | None:
    """Returns what is sick about a Node; None if it has no sign."""
    signs = read_signs(node, settings)
    takes_pods = not (node.get("spec") or {}).get("unschedulable")
    return SickNode(signs=signs, takes_pods=takes_pods) if signs else None


def describe(node: SickNode, believed: Iterable[str]) -> str:
    """Returns the node's own text of the signs that are believed."""
    names = set(believed)
    return _short("; ".join(sign.message for sign in node.signs if sign.name in names))


def _message_of_condition(condition: Mapping[str, Any]) -> str:
    reason, detail = str(condition.get("reason") or ""), " ".join(str(condition.get("message") or "").split())
    state = f"condition {condition['type']} is {condition['status']}" + (f" ({reason})" if reason else "")
    return _short(f"{state}: {detail}" if detail else state)


def _short(message: str) -> str:
    return message if len(message) <= MESSAGE_LENGTH else message[: MESSAGE_LENGTH - 1] + "…"


def _pairs(entries: Sequence[str]) -> Iterable[tuple[str, str]]:
    return ((key, value) for key, _, value in (entry.partition("=") for entry in entries))
