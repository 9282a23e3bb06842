"""`status` of a DistributedTrainingJob, written by the operator.

Counters never decrease, and terminal conditions are final.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dtj_contract import names
from dtj_core.api.avoid_nodes import AVOIDED_NODES
from dtj_core.api.base_model import Model

Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
FAILURES = 5
RECOVERIES = 5


class Condition(Model):
    """A metav1.Condition.

    Types: Complete, Failed, Suspended, Running, Restarting; and, beside them, Stalled and AgentUnreachable.
    """

    type: str = Field(max_length=316)
    """Type of the condition: Complete, Failed, Suspended, Running, Restarting, Stalled or AgentUnreachable."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition holds."""
    observed_generation: int | None = None
    """Value of metadata.generation that this condition was decided for."""
    last_transition_time: Time
    """Time at which the status of the condition last changed."""
    reason: str = Field(max_length=1024)
    """CamelCase identifier, the same as in events and metrics."""
    message: str = Field(max_length=32768)
    """Explanation for people."""


class Restarts(Model):
    """Restarts since the job was created."""

    total: int | None = None
    """Number of all restarts."""
    in_place: int | None = None
    """Restarts that replaced no pod."""
    pod: int | None = None
    """Restarts after a pod was lost and replaced."""
    counted: int | None = None
    """Restarts, of either kind, that counted against spec.restart.maxRestarts."""


class Progress(Model):
    """Progress as last reported by the trainer."""

    step: int | None = None
    """Optimizer steps done. See stepSource."""
    step_source: str | None = None
    """Script: the script reports its step. Optimizer: the script reports none, and the agents count
    the steps of its torch optimizers in the current attempt, from 0 in each attempt; of a script
    that has created none, they count its backward passes. Unknown: no step was seen so far."""
    total_steps: int | None = None
    """Steps after which the training is complete, if the script reports the number."""
    percent: float | None = None
    """Percentage of totalSteps that is done, or as the script estimates it."""
    loss: float | None = None
    """Loss of the last reported step."""
    samples_per_second: float | None = None
    """Samples that all ranks train on in a second."""
    steps_per_second: float | None = None
    """Optimizer steps in a second."""
    eta: Time | None = None
    """Time at which the training will reach totalSteps at its current speed, or as the script estimates it."""
    metrics: dict[str, float] | None = Field(default=None, max_length=32)
    """Other numbers that the script reported, by name."""
    time: Time | None = None
    """Time of the trainer's report."""


class CheckpointStatus(Model):
    """The newest complete checkpoint."""

    step: int | None = None
    """Step after which the checkpoint was written."""
    path: str | None = None
    """Folder of the checkpoint in the container."""
    time: Time | None = None
    """Time at which the checkpoint was complete."""


class Failure(Model):
    """A failure that ended an attempt, with the evidence."""

    attempt: int | None = None
    """Attempt that the failure ended."""
    rank: int | None = None
    """Rank that failed first."""
    ordinal: int | None = None
    """Ordinal of its pod."""
    pod: str | None = None
    """Name of its pod."""
    node: str | None = None
    """Node of its pod."""
    exit_code: int | None = None
    """Exit code of the worker or container."""
    signal: str | None = None
    """Signal that killed the worker."""
    reason: str | None = None
    """CamelCase identifier, the same as in conditions, events and restart.rules."""
    message: str | None = None
    """Explanation for people."""
    time: Time | None = None
    """Time of the failure."""
    action: str | None = None
    """Action of the rule in spec.restart.rules that matched; absent if none did."""
    log_tail: str | None = None
    """The last lines that the rank wrote."""
    stack: str | None = None
    """Python stack of the rank, where it hung."""


class Straggler(Model):
    """A rank whose own work in a step takes longer than that of the others."""

    rank: int | None = None
    """The slow rank."""
    pod: str | None = None
    """Name of its pod."""
    node: str | None = None
    """Node of its pod."""
    ratio: float | None = None
    """Time of its own work, as a multiple of the median rank's."""


class AvoidedNode(Model):
    """A node that the job's pods avoid (spec.restart.avoidNodes)."""

    node: str | None = None
    """Name of the node."""
    reason: str | None = None
    """Reason of the last failure on the node; NodeSick: the node is called sick."""
    message: str | None = None
    """The text of the sick node itself."""
    pods: int | None = None
    """Number of pods that were moved away from a sick node."""
    failures: int | None = None
    """Number of failures that made the node avoided."""
    since: Time | None = None
    """Time since which the node is avoided."""
    until: Time | None = None
    """Time at which the node may be used again."""
    lifted: Time | None = None
    """Time since which the node may be used after all, because no other node had room."""


class OwnEvictions(Model):
    """Evictions of a job's only pod by its kubelet, for what the pod used."""

    count: int | None = None
    """Number of evictions that took a restart from the budget, without progress between them."""
    times: list[Time] | None = Field(default=None, max_length=3)
    """Times of the last ones within restart.windowSeconds, without progress between them."""
    spent: list[Time] | None = Field(default=None, max_length=1001)
    """Times of those that took a restart from the budget within restart.windowSeconds."""
    pod_uid: str | None = Field(default=None, alias="podUID")
    """The pod that was evicted last."""
    step: int | None = None
    """Step that the script had reported then."""
    time: Time | None = None
    """Time of the last one."""


class Recovery(Model):
    """A restart of the group, and its cost."""

    attempt: int | None = None
    """Attempt that began with the restart."""
    kind: str | None = None
    """InPlace: no pod was replaced. Pod: a pod was lost, and the group waited for it or for the end of
    spec.elastic.waitSeconds. Spare: a pod was lost, and a spare took its place at once. Resize: nothing was
    lost, the group was stopped to continue with more or fewer pods."""
    reason: str | None = None
    """Reason of the failure or loss that caused it."""
    counted: bool | None = None
    """Whether the restart counted against spec.restart.maxRestarts."""
    time: Time | None = None
    """Time at which the attempt before it broke."""
    last_step: int | None = None
    """Last step of the attempt before it."""
    resumed_step: int | None = None
    """Step of the state that was loaded."""
    lost_steps: int | None = None
    """Steps that had to be done again."""
    from_replicas: int | None = None
    """Pods before, if their number has changed."""
    to_replicas: int | None = None
    """Pods after, if their number has changed."""
    source: str | None = None
    """Where the state came from: memory (of each pod), replica or partner (another pod's memory), volume."""
    seconds: dict[str, float] | None = Field(default=None, max_length=16)
    """Duration by phase: detect, stop, schedule, rendezvous, load, firstStep."""


class AgentMemory(Model):
    """Counters that the agent last reported.

    The sums in status continue from them when all pods, and the agents' memory, are lost.
    """

    in_place: int | None = None
    """Restarts that replaced no pod."""
    pod: int | None = None
    """Restarts after a pod was lost."""
    counted: int | None = None
    """Restarts that counted against the budget."""
    productive_seconds: float | None = None
    """Seconds spent on steps that were not lost."""
    start_time: float | None = None
    """Unix time at which the agents' memory begins. Counters of another memory began at 0."""
    attempt: int | None = None
    """Highest attempt of that memory. Outcomes of earlier attempts no longer count."""
    event_time: float | None = None
    """Unix time of the newest agent event that became a Kubernetes event."""
    of_earlier_run: bool | None = None
    """The pods of that memory were removed, by a suspension for example."""


class HalfPlaced(Model):
    """Tries to place all pods, after pods of the job held nodes while others found none."""

    releases: int | None = None
    """Number of times that the job has given its nodes back since its group last trained."""
    time: Time | None = None
    """Time of the last of them."""
    retry_time: Time | None = None
    """Time from which the job tries again."""


class RuntimeStatus(Model):
    """The runtime that the job runs with, as it was when the job took it."""

    name: str | None = None
    """Name of the DistributedTrainingRuntime."""
    uid: str | None = None
    """Identity of that object: one that was deleted and created again has another."""
    generation: int | None = None
    """Generation of its spec."""
    hash: str | None = None
    """Digest of its spec: equal specs have equal digests."""
    time: Time | None = None
    """Time at which the job took it."""
    spec: dict[str, Any] | None = None
    """The spec as it was then. A later change of the runtime changes nothing here."""


class Status(Model):
    """Observed state of the job."""

    observed_generation: int | None = None
    """Value of metadata.generation of the spec that this status is about."""
    phase: str | None = None
    """Summary of the conditions for people. Scripts should wait for a condition."""
    reason: str | None = None
    """Reason of the condition that phase is derived from."""
    conditions: list[Condition] | None = Field(
        None,
        max_length=8,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    """State of the job. Scripts wait for Complete or Failed."""
    replicas: int | None = None
    """Number of pods that the job has without its spares. Of an elastic job that trains: the pods of
    its attempt."""
    ready_replicas: int | None = None
    """Number of ready pods, without spares."""
    ready: str | None = None
    """Ready pods of the wanted ones, as readyReplicas/spec.replicas."""
    spares: int | None = None
    """Number of ready pods beyond spec.replicas. Any pod of the job may be the spare."""
    selector: str | None = None
    """Label of the pods of an elastic job, for its scale subresource."""
    shrink_time: Time | None = None
    """Time since which an elastic job has had more pods than its spec, because it was scaled down."""
    attempt: int | None = None
    """Number of the current attempt. The first is 1, and every restart increments it."""
    start_time: Time | None = None
    """Time at which the job became active. Not set while the job is suspended."""
    completion_time: Time | None = None
    """Time at which the job became Complete or Failed."""
    last_update_time: Time | None = None
    """Time at which this status was last written."""
    queue_name: str | None = None
    """LocalQueue of Kueue that admits the pods: spec.queueName, or that of the runtime."""
    runtime: RuntimeStatus | None = None
    restarts: Restarts | None = None
    progress: Progress | None = None
    checkpoint: CheckpointStatus | None = None
    failures: list[Failure] | None = Field(default=None, max_length=FAILURES)
    """The newest failures, oldest first."""
    recoveries: list[Recovery] | None = Field(default=None, max_length=RECOVERIES)
    """The newest restarts, oldest first."""
    stragglers: list[Straggler] | None = Field(default=None, max_length=names.MAX_STRAGGLERS)
    """Slow ranks of the running attempt, the slowest first."""
    avoided_nodes: list[AvoidedNode] | None = Field(default=None, max_length=AVOIDED_NODES)
    """Nodes that pods are recreated away from."""
    own_evictions: OwnEvictions | None = None
    half_placed: HalfPlaced | None = None
    productive_seconds: float | None = None
    """Seconds spent on steps that were not lost later."""
    active_seconds: float | None = None
    """Seconds that the job was active before startTime, that is, before its last suspension."""
    goodput: float | None = None
    """Share of the active time that is productiveSeconds, 0 to 1."""
    coordinator: str | None = None
    """Name of the pod whose agent coordinated when this status was written. A hint: any agent may take
    over."""
    agent: AgentMemory | None = None
    writes_left: float | None = None
    """Number of status writes that the operator could make at once at lastUpdateTime. A token
    bucket limits the writes."""

    def dump(self) -> dict[str, Any]:
        """Returns a plain dict without unset fields."""
        return self.model_dump(by_alias=True, exclude_none=True)
