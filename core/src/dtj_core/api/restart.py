"""`spec.restart`: what failures cost, and when they end the job."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, StringConstraints

from dtj_contract import names, rule_names
from dtj_contract.log_pattern import AMBIGUOUS, MAX_PATTERN_CHARS, LogPattern
from dtj_core.api.avoid_nodes import AvoidNodes
from dtj_core.api.base_model import INT32_MAX, VALIDATIONS, Model, Rule

# A Literal can't be built from names; a test compares the three with rule_names.RULE_*.
Action = Literal["Restart", "RestartElsewhere", "RestartFree", "Fail"]
RuleReason = Literal[
    "WorkerFailed", "OOMKilled", "WorkerStuck", "AgentCrashed", "AgentTerminated", "ConnectionLost", "PodLost",
    "PodDeleted", "PodEvicted", "Preempted", "NodeLost", "NoRestartExitCode", "EntrypointNotFound", "ImportFailed",
    "ScriptError", "UsageError", "FileNotFound", "WorkerHung", "Straggler",
]  # fmt: skip
RuleSignal = Literal[
    "SIGABRT", "SIGALRM", "SIGBUS", "SIGFPE", "SIGHUP", "SIGILL", "SIGINT", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSEGV",
    "SIGSYS", "SIGTERM", "SIGTRAP", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGXFSZ",
]  # fmt: skip
MATCHERS = ("exitCodes", "exitCodePreset", "signals", "reasons", "logPattern")


_PATTERN_RULE = Rule(
    # RE2 reports what it can't compile as an error of this rule.
    cel=f"!self.matches(r'{AMBIGUOUS}') && ('x'.matches(self) || !'x'.matches(self))",
    message="logPattern must be an RE2 expression without look-around, backreferences, named groups, Unicode and POSIX"
    " classes",
    holds=None,
)


def _searchable(pattern: str) -> str:
    """Returns the pattern. Raises ValueError if an agent can't search it."""
    try:
        LogPattern(pattern)
    except ValueError as error:
        raise ValueError(f"{_PATTERN_RULE.message}: {error}") from error
    return pattern


Pattern = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_PATTERN_CHARS),
    AfterValidator(_searchable),
    Field(json_schema_extra={VALIDATIONS: [_PATTERN_RULE.as_crd()]}),
]


class RestartRule(Model):
    """Action after a failure that every matcher of the rule matches."""

    action: Action
    """Restart: restarts and costs budget, even after an error that would end the job by default.
    RestartElsewhere: the same, and the operator first replaces the pod on another node.
    RestartFree: restarts without costing budget. Fail: fails the job at once."""
    exit_codes: list[Annotated[int, Field(ge=1, le=255)]] | None = Field(default=None, min_length=1, max_length=32)
    """Exit codes of the worker. A worker that a signal killed has 128 + the number of the signal,
    as in a shell."""
    exit_code_preset: Literal["Usage", "Permanent", "Retryable"] | None = None
    """A set of exit codes. Usage: 2 and 64. Permanent: 1 to 127. Retryable: 128 to 255. The last
    two are those of `restartPolicy: ExitCode` in Kubeflow's training operator."""
    signals: list[RuleSignal] | None = Field(default=None, min_length=1, max_length=len(rule_names.RULE_SIGNALS))
    """Signals that killed the worker, or the command that a shell ran for it."""
    reasons: list[RuleReason] | None = Field(default=None, min_length=1, max_length=64)
    """Reasons as in status.failures. A lost pod has PodLost until Kubernetes shows the cause:
    PodEvicted (an eviction or a drain), Preempted, PodDeleted or NodeLost. Straggler: a rank that
    has been slow for a minute, which is no failure without such a rule."""
    log_pattern: Pattern | None = None
    """Regular expression that is found in the last 2 kB of the failed rank's output, or in the
    message of the failure. RE2 syntax without Unicode classes; ^ and $ match at each line, and
    `(?i)` at the start ignores case."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=" || ".join(f"has(self.{name})" for name in MATCHERS),
            message=f"a rule needs at least one of {', '.join(MATCHERS)}",
            holds=lambda self: bool(self.model_fields_set - {"action"}),
        ),
    )


class RestartSettings(Model):
    """Budget for failures of the job's own.

    Preempted, drained and deleted pods never count.
    """

    max_restarts: int = Field(default=10, ge=0, le=1000)
    """Number of restarts allowed within windowSeconds. The next failure fails the job. A new
    checkpoint resets the count. Can be changed while the job runs."""
    window_seconds: int = Field(default=3600, ge=1, le=INT32_MAX)
    """Length of the sliding window in seconds. Can be changed while the job runs."""
    max_restarts_without_progress: int = Field(default=names.MAX_WITHOUT_PROGRESS, ge=1, le=1000)
    """Number of restarts in a row that cost budget and brought no new step and no new
    checkpoint. The next failure fails the job with NoProgress, however long that took. Can be
    changed while the job runs."""
    avoid_nodes: AvoidNodes = AvoidNodes()
    """Nodes on which the training fails again and again: their pods are recreated elsewhere."""
    stop_grace_seconds: float | None = Field(default=None, ge=0, le=600)
    """Seconds from SIGTERM to SIGKILL for the workers of a failed group. Default: 0.5 if a worker
    has a SIGTERM handler of its own, else 0. A longer time lets their signal handlers save, but
    every restart may then take that long, because a rank that waits in a collective runs no
    handler. After WorkerHung there is no such time."""
    failure_rules: list[RestartRule] = Field(default=[], alias="rules", max_length=rule_names.MAX_RULES)
    """Actions after certain failures. The first rule that matches decides."""
