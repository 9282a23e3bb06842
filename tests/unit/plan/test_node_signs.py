"""Tests of which nodes are called sick, and in which terms."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_core.plan.node_signs import MESSAGE_LENGTH, SickNodeSettings, read_node, read_signs

Object = dict[str, Any]
OWN = SickNodeSettings(
    conditions=("Broken", "HardwareReady=False"), labels=("state=bad", "retired"), taints=("gone", "risk=high")
)


def node(*, labels: Object | None = None, conditions: tuple[Object, ...] = (), **spec: Any) -> Object:
    return {"metadata": {"name": "w1", "labels": labels or {}}, "spec": spec, "status": {"conditions": conditions}}


def condition(kind: str, status: str = "True", **more: str) -> Object:
    return {"type": kind, "status": status} | more


CASES: dict[str, tuple[Object, list[str]]] = {
    "a healthy node": (node(conditions=(condition("Ready"), condition("Broken", "False"))), []),
    "a condition": (
        node(conditions=(condition("Broken", reason="Xid79", message="GPU has\n fallen  off the bus"),)),
        ["condition Broken is True (Xid79): GPU has fallen off the bus"],
    ),
    "a condition without a reason": (node(conditions=(condition("Broken"),)), ["condition Broken is True"]),
    "a condition that is unknown": (node(conditions=(condition("Broken", "Unknown"),)), []),
    "a condition that is good when true": (node(conditions=(condition("HardwareReady"),)), []),
    "a condition that is bad when false": (
        node(conditions=(condition("HardwareReady", "False", reason="DCGMError"),)),
        ["condition HardwareReady is False (DCGMError)"],
    ),
    "a condition that nobody named": (node(conditions=(condition("DiskPressure"),)), []),
    "a label with this value": (node(labels={"state": "bad"}), ["label state=bad"]),
    "a label with another value": (node(labels={"state": "good"}), []),
    "a label with any value": (node(labels={"retired": "2026"}), ["label retired=2026"]),
    "a taint": (node(taints=[{"key": "gone", "effect": "NoSchedule"}]), ["taint gone:NoSchedule"]),
    "a taint with this value": (
        node(taints=[{"key": "risk", "value": "high", "effect": "NoExecute"}]), ["taint risk=high:NoExecute"],
    ),
    "a taint with another value": (node(taints=[{"key": "risk", "value": "low", "effect": "NoExecute"}]), []),
    "a cordon": (node(unschedulable=True), ["it is cordoned"]),
    "several": (
        node(labels={"state": "bad"}, conditions=(condition("Broken"),), unschedulable=True),
        ["condition Broken is True", "label state=bad", "it is cordoned"],
    ),
    "an empty node": ({"metadata": {"name": "w1"}}, []),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_signs_are_what_the_installation_names_in_the_nodes_own_text(case: str) -> None:
    given, expected = CASES[case]
    assert [sign.message for sign in read_signs(given, OWN)] == expected


@pytest.mark.parametrize(
    "given",
    [
        node(conditions=(condition("XidCriticalError"),)),
        node(conditions=(condition("KernelDeadlock"),)),
        node(conditions=(condition("SysLogsXIDError"),)),
        node(conditions=(condition("GpuMemWatch"),)),
        node(conditions=(condition("AcceleratedHardwareReady", "False"),)),
        node(labels={"dgxc.nvidia.com/nvsentinel-state": "quarantined"}),
        node(unschedulable=True),
    ],
    ids=lambda given: str(read_signs(given, SickNodeSettings())[0].name),
)
def test_defaults_know_the_common_detectors(given: Object) -> None:
    assert read_node(given, SickNodeSettings()) is not None


@pytest.mark.parametrize("kind", ["DiskPressure", "FrequentKubeletRestart", "ContainerRuntimeUnhealthy"])
def test_defaults_leave_out_what_a_training_survives(kind: str) -> None:
    assert read_node(node(conditions=(condition(kind),)), SickNodeSettings()) is None


def test_cordon_counts_only_where_the_installation_wants_it() -> None:
    assert read_node(node(unschedulable=True), SickNodeSettings(cordon=False)) is None
    both = node(conditions=(condition("XidCriticalError"),), unschedulable=True)
    found = read_node(both, SickNodeSettings(cordon=False))
    assert found is not None
    assert not found.takes_pods


def test_value_of_a_label_is_no_sign_of_its_own() -> None:
    """Nodes of one detector are counted together."""
    settings = SickNodeSettings()
    states = ("quarantined", "draining")
    found = [read_signs(node(labels={"dgxc.nvidia.com/nvsentinel-state": s}), settings)[0].name for s in states]
    assert len(set(found)) == 1


def test_long_message_is_cut() -> None:
    [sign] = read_signs(node(conditions=(condition("Broken", message="x" * 5000),)), OWN)
    assert len(sign.message) == MESSAGE_LENGTH
