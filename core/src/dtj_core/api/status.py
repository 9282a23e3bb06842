"""`status` of a DistributedTrainingJob. The operator writes it; every count in it only grows, terminal stays terminal."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dtj_core.api.rules import Model

Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
FAILURES = 5
RECOVERIES = 5


class Condition(Model):
    """As metav1.Condition. Types: Complete, Failed, Suspended, Running, Restarting; and Stalled, beside them."""

    type: str = Field(max_length=316)
    status: Literal["True", "False", "Unknown"]
    observed_generation: int | None = None
    """metadata.generation that this condition was decided for."""
    last_transition_time: Time
    """When status last changed from one value to another."""
    reason: str = Field(max_length=1024)
    """One CamelCase word; the same as of events and metrics."""
    message: str = Field(max_length=32768)


class Restarts(Model):
    """Restarts since the job was made."""

    total: int | None = None
    in_place: int | None = None
    """No pod was touched."""
    pod: int | None = None
    """A pod was lost and came back."""
    counted: int | None = None
    """Of all these, how many counted against spec.restart.maxRestarts."""


class Progress(Model):
    """As last reported by the trainer."""

    step: int | None = None
    """Optimizer steps done."""
    total_steps: int | None = None
    percent: float | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    steps_per_second: float | None = None
    eta: Time | None = None
    """When totalSteps will be reached at the present speed."""
    metrics: dict[str, float] | None = Field(default=None, max_length=32)
    """What else the script reported, by name."""
    time: Time | None = None
    """When the trainer reported it."""


class CheckpointStatus(Model):
    """The newest complete checkpoint."""

    step: int | None = None
    path: str | None = None
    time: Time | None = None


class Failure(Model):
    """What ended an attempt, with the evidence."""

    attempt: int | None = None
    rank: int | None = None
    ordinal: int | None = None
    pod: str | None = None
    node: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    reason: str | None = None
    message: str | None = None
    time: Time | None = None
    log_tail: str | None = None
    """The last lines that the rank wrote."""


class Recovery(Model):
    """One restart of the group: what it cost."""

    attempt: int | None = None
    kind: str | None = None
    """InPlace: no pod touched; Pod: a pod was lost and came back."""
    reason: str | None = None
    counted: bool | None = None
    """Counted against spec.restart.maxRestarts."""
    time: Time | None = None
    last_step: int | None = None
    resumed_step: int | None = None
    lost_steps: int | None = None
    seconds: dict[str, float] | None = Field(default=None, max_length=16)
    """Duration by phase: detect, stop, schedule, rendezvous, load, firstStep."""


class AgentMemory(Model):
    """What the agent last said of itself, so that sums go on when all pods, and its memory, are lost."""

    in_place: int | None = None
    pod: int | None = None
    counted: int | None = None
    productive_seconds: float | None = None
    start_time: float | None = None
    """Unix time at which its memory begins: another one began its counters at 0."""
    attempt: int | None = None
    """The greatest attempt of that memory: an outcome of an earlier one is over."""
    event_time: float | None = None
    """Unix time of the newest agent event that became a Kubernetes event."""


class Status(Model):
    """What is known of the job."""

    observed_generation: int | None = None
    phase: str | None = None
    """Derived from the conditions, for people. Scripts wait for a condition."""
    reason: str | None = None
    """Reason of the condition that phase comes from."""
    conditions: list[Condition] | None = Field(
        None,
        max_length=8,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    replicas: int | None = None
    ready_replicas: int | None = None
    ready: str | None = None
    """readyReplicas/replicas."""
    attempt: int | None = None
    """Number of the present attempt; the first is 1 and every restart raises it."""
    start_time: Time | None = None
    """Since when the job is active. Not set while it is suspended."""
    completion_time: Time | None = None
    """When it became Complete or Failed."""
    last_update_time: Time | None = None
    """When this status was last written."""
    restarts: Restarts | None = None
    progress: Progress | None = None
    checkpoint: CheckpointStatus | None = None
    failures: list[Failure] | None = Field(default=None, max_length=FAILURES)
    """The newest failures, oldest first."""
    recoveries: list[Recovery] | None = Field(default=None, max_length=RECOVERIES)
    """The newest restarts, oldest first."""
    productive_seconds: float | None = None
    """Seconds in which steps were done that were not lost later."""
    active_seconds: float | None = None
    """Seconds that the job was active before startTime, that is before its last suspension."""
    goodput: float | None = None
    """productiveSeconds as a share of the time active, 0 to 1."""
    agent: AgentMemory | None = None
    writes_left: float | None = None
    """How many writes of this status the operator could make at once at lastUpdateTime: it bounds them by a token bucket."""

    def dump(self) -> dict[str, Any]:
        """As a plain dict, without what is not set."""
        return self.model_dump(by_alias=True, exclude_none=True)
