"""Rules about updates: what can change while a job runs.

Only the API server sees both versions of an object, so these rules exist in CEL alone.
"""

from __future__ import annotations

from dtj_contract import names
from dtj_core.api.base_model import Rule
from dtj_core.api.checkpoint import EVERY_STEPS

REMEDY = "can't change unless the job is suspended: set spec.suspend to true first, or create a new job"


def immutable(*fields: str) -> Rule:
    """Returns the rule that rejects a change of these and more fields while the job is not suspended.

    Of restart and checkpoint it leaves what the operator hands over to running agents: the budget, avoidNodes and
    `keep`.

    One rule, because its first comparison ends it for every write of a status. The API server evaluates the rules of
    the spec at each of these, and builds a map of all fields of the spec whenever CEL reads one: 29 rules, one for
    each field, cost it 2 to 3 ms of CPU a write (benchmarks/operator).

    CEL compares what the schema does not name (most of a template) as a whole, and misses a renamed
    key of an equally large object. The planner detects such a change too, and recreates the pods.
    """
    kept = {field: _is_kept(field) for field in fields}
    # An older CRD wrote the default of `backend` into the object; so does a client today.
    kept["backend"] = _is_kept_value("backend", default="'auto'")
    kept["engine"] = _is_kept_value("engine", default=f"'{names.DEFAULT_ENGINE}'")
    kept["restart.rules"] = _is_kept_value("restart.rules", default="[]")
    kept["restart.stopGraceSeconds"] = (
        f"{_has('self', 'restart.stopGraceSeconds')} == {_has('oldSelf', 'restart.stopGraceSeconds')}"
        f" && {_is_kept_value('restart.stopGraceSeconds', default='0.0')}"
    )
    kept["checkpoint"] = "has(self.checkpoint) == has(oldSelf.checkpoint)"
    kept["checkpoint.volume"] = _is_kept("checkpoint.volume")
    kept["checkpoint.mountPath"] = _is_kept_value("checkpoint.mountPath", default=f"'{names.DEFAULT_CHECKPOINT_DIR}'")
    kept["checkpoint.everySteps"] = _is_kept_value("checkpoint.everySteps", default=str(EVERY_STEPS))
    first = "".join(f"!({same}) ? 'spec.{field}' : " for field, same in kept.items())
    return Rule(
        cel=f"self == oldSelf || oldSelf.suspend || ({' && '.join(f'({same})' for same in kept.values())})",
        message=f"what shapes the pods {REMEDY}",
        message_cel=f"""({first}'spec') + " {REMEDY}\"""",  # a list of all of them exceeds the limit of its cost
        holds=None,
    )


def _has(parent: str, path: str) -> str:
    """Returns CEL that is true if `path` below `parent` and all objects on the way are there."""
    steps = path.split(".")
    return "(" + " && ".join(f"has({'.'.join((parent, *steps[: end + 1]))})" for end in range(len(steps))) + ")"


def _is_kept(path: str) -> str:
    """Returns CEL that is true if the field has the same value as before, or is absent as before."""
    has, had = _has("self", path), _has("oldSelf", path)
    return f"{has} == {had} && (!{has} || !{had} || self.{path} == oldSelf.{path})"


def _is_kept_value(path: str, *, default: str) -> str:
    """Returns CEL that is true if the field has the same value as before, where an absent one has the default."""
    new, old = (f"({_has(each, path)} ? {each}.{path} : {default})" for each in ("self", "oldSelf"))
    return f"{new} == {old}"


REPLICAS = (
    Rule(
        cel="self.replicas == oldSelf.replicas || oldSelf.suspend || has(self.elastic)",
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


def fixed(field: str) -> Rule:
    """Returns a rule that rejects every change of `field`, whether or not the job is suspended."""
    return Rule(
        cel=f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})",
        message=f"{field} can't change: create a new job",
        holds=None,
        field=field,
    )
