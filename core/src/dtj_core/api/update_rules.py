"""Rules about updates: what can change while a job runs.

Only the API server sees both versions of an object, so these rules exist in CEL alone.
"""

from __future__ import annotations

from dtj_contract import names
from dtj_core.api.base_model import Rule
from dtj_core.api.checkpoint import EVERY_STEPS


def immutable(field: str, default: str = "") -> Rule:
    """Returns a rule that rejects a change of `field` while the job is not suspended.

    `default`: the value of an absent field, where the API server does not write it.

    CEL compares what the schema does not name (most of a template) as a whole, and misses a renamed
    key of an equally large object. The planner detects such a change too, and recreates the pods.
    """
    same = f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"
    if default:
        new, old = (f"(has({each}.{field}) ? {each}.{field} : '{default}')" for each in ("self", "oldSelf"))
        same = f"{new} == {old}"
    return Rule(
        cel=f"oldSelf.suspend || ({same})",
        message=f"{field} can't change unless the job is suspended: set spec.suspend to true first, or create a new "
        "job",
        holds=None,
        field=field,
    )


def restart_is_kept() -> Rule:
    """Returns a rule that rejects a change of spec.restart beyond the budget while the job is not suspended.

    The operator hands the budget over to the agents, so no pod is recreated for it.
    """

    def has(parent: str, name: str) -> str:
        return f"(has({parent}.restart) && has({parent}.restart.{name}))"

    def same(name: str, default: str) -> str:
        new, old = (f"({has(each, name)} ? {each}.restart.{name} : {default})" for each in ("self", "oldSelf"))
        return f"{new} == {old}"

    grace = f"{has('self', 'stopGraceSeconds')} == {has('oldSelf', 'stopGraceSeconds')}"
    return Rule(
        cel=f"oldSelf.suspend || ({grace} && {same('stopGraceSeconds', '0.0')} && {same('rules', '[]')})",
        message="of restart, only maxRestarts, windowSeconds, maxRestartsWithoutProgress and avoidNodes can change"
        " while the job runs: set spec.suspend to true first",
        holds=None,
        field="restart",
    )


REPLICAS = (
    Rule(
        cel="oldSelf.suspend || self.replicas == oldSelf.replicas || has(self.elastic)",
        message="replicas can't change while the job runs unless the job is elastic: set spec.suspend to true first, or"
        " create a job with spec.elastic",
        holds=None,
        field="replicas",
    ),
    Rule(
        cel="!has(self.elastic) || (self.replicas >= self.elastic.minReplicas"
        " && (!has(self.elastic.maxReplicas) || self.replicas <= self.elastic.maxReplicas))",
        message="replicas must not be less than elastic.minReplicas or greater than elastic.maxReplicas",
        holds=lambda self: (
            self.elastic is None
            or self.elastic.min_replicas <= self.replicas <= (self.elastic.max_replicas or self.replicas)
        ),
        field="replicas",
    ),
)


def checkpoint_is_kept() -> Rule:
    """Returns a rule that rejects a change of spec.checkpoint beyond `keep` while the job is not suspended.

    The operator hands `keep` over to the agents, so no pod is recreated for it.
    """

    def value(parent: str, name: str, default: str) -> str:
        return f"(has({parent}.checkpoint.{name}) ? {parent}.checkpoint.{name} : {default})"

    volume = (
        "has(self.checkpoint.volume) == has(oldSelf.checkpoint.volume)"
        " && (!has(self.checkpoint.volume) || self.checkpoint.volume == oldSelf.checkpoint.volume)"
    )
    defaults = (("mountPath", f"'{names.DEFAULT_CHECKPOINT_DIR}'"), ("everySteps", str(EVERY_STEPS)))
    same = " && ".join((volume, *(f"{value('self', *each)} == {value('oldSelf', *each)}" for each in defaults)))
    return Rule(
        cel="oldSelf.suspend || (has(self.checkpoint) == has(oldSelf.checkpoint)"
        f" && (!has(self.checkpoint) || {same}))",
        message="of checkpoint, only keep can change while the job runs: set spec.suspend to true first, or create a"
        " new job",
        holds=None,
        field="checkpoint",
    )


def fixed(field: str) -> Rule:
    """Returns a rule that rejects every change of `field`, whether or not the job is suspended."""
    return Rule(
        cel=f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})",
        message=f"{field} can't change: create a new job",
        holds=None,
        field=field,
    )
