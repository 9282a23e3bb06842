"""The part of `/status` that the planner reads, for callers that keep the pages of many jobs."""

from __future__ import annotations

from dtj_contract import names
from dtj_core.api.status import FAILURES, RECOVERIES
from dtj_core.plan.agent_report import BUSY, EVENT, FAILURE, MEMBER, MEMBERS, RECOVERY
from dtj_core.plan.model import Object

KEPT = (
    "version", "uid", "ordinal", "attempt", "phase", "phaseReason", "phaseMessage", "replicas", "restarts", "progress",
    "stepsUnknown", "checkpoint", "productiveSeconds", "startTime", "leader", "stragglers",
)  # fmt: skip
LISTS = {
    "failures": (FAILURE, FAILURES),
    "recoveries": (RECOVERY, RECOVERIES),
    "events": (EVENT, names.KEEP_EVENTS),
}
CLOCKED = ("productiveSeconds",)
"""The fields that grow while nothing happens."""


def slim(page: Object) -> Object:
    """Returns `page` without what report_from_status ignores.

    Of the members, which may be a thousand, only those with workers are kept, and of a member that
    is not stuck only its ordinal and state.
    """
    kept = {name: page[name] for name in KEPT if name in page}
    for name, (shape, newest) in LISTS.items():
        kept[name] = [_fields(item, shape) for item in _list(page, name)[-newest:]]
    kept["members"] = [_member(each) for each in _list(page, "members")[-MEMBERS:] if _has_workers(each)]
    return kept


def without_clock(page: Object) -> Object:
    """Returns a slim `page` without the fields that grow with the clock alone.

    Where two pages differ in these fields only, the later one is no cause for a plan: `throttle_status_writes` holds
    the status back that would follow. Any other plan reads the newest page, so the productive seconds and the goodput
    in the status are refreshed by the next change, and without one by the reconcile that is due each
    `status_poll_seconds` while a pod runs, or by the resync.
    """
    return {name: value for name, value in page.items() if name not in CLOCKED}


def _list(page: Object, name: str) -> list[object]:
    found = page.get(name)
    return found if isinstance(found, list) else []


def _has_workers(member: object) -> bool:
    state = member.get("state") if isinstance(member, dict) else None
    return isinstance(state, str) and state in BUSY


def _member(member: object) -> Object:
    assert isinstance(member, dict)
    names_kept = MEMBER if member.get("state") == names.MEMBER_STUCK else ("ordinal", "state")
    return {name: member[name] for name in names_kept if name in member}


def _fields(item: object, shape: dict[str, str]) -> object:
    return {name: _cut(item[name]) for name in shape if name in item} if isinstance(item, dict) else None


def _cut(value: object) -> object:
    return value[: names.LOG_TAIL_BYTES] if isinstance(value, str) else value
