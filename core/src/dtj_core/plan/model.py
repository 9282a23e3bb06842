"""The planner's input and output: what a reconcile observes, and the plan that it executes.

`plan(job, observed, now, settings)` in plan.py compares the desired state of a
DistributedTrainingJob with the observed state, and returns the actions that bring the second closer
to the first. `now` is Unix seconds; everything else is of the types below. The planner does no I/O and
reads no clock. Its callers are the operator (dtj_operator.controller), which executes plans on a
Kubernetes API server, and `dtj run` (dtj.local), which executes them on one machine. The planner
can't distinguish them.

Planning is level-based: a plan follows from the objects as they are, never from the event that
triggered the reconcile. For example, the planner is not informed that a pod was deleted; it
observes that the pod is missing. A reconcile may therefore run at any time, for any reason and any
number of times, and a caller may drop and merge events.

The planner relies on its caller to:

1. Observe the job as stored, including its status, and every object that bears the name of a child,
   whoever owns it.
2. Execute a plan in its order: actions, then the status if it differs from the stored one, then
   events. On the first error, stop, observe and plan again. Execution may have been interrupted
   before, so any step may run twice; each is idempotent.
3. Reconcile again after `requeue_after` seconds, and whenever the job, a child or a pod changes.
4. Plan again at once when the API server rejects a child: with `rejection` set if its validation
   calls the child invalid, or with `refusal` set for any other answer (a quota, an admission
   plugin, a missing right). Keep either set for a bounded time, so that the same request is not
   sent at every reconcile and is sent again at last.

Objects are plain dicts as the API server returns them. Typed models would drop fields of a user's
pod template.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dtj_contract import names
from dtj_core.plan.node_signs import NodeHealth, SickNodeSettings

Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The children as they are now.

    `None` and `()` mean that the caller looked and found nothing.
    """

    stateful_set: Object | None = None
    service: Object | None = None
    runtime: Object | None = None
    """The DistributedTrainingRuntime that the job's spec.runtimeRef names."""
    runtimes_served: bool = True
    """Whether the caller can list runtimes: False without their CRD, or without the right."""
    pods: tuple[Object, ...] = ()
    """All pods with the label names.LABEL_JOB of this job, including terminating ones."""
    agent: Object | None = None
    """`/status` of the agent that coordinates (docs/reference/contract.md), or of another one if that
    agent did not answer; None if no agent answered."""
    agent_silent_seconds: float = 0.0
    """How long the agents have left every request unanswered; 0 after an answer, or without a pod that
    runs."""
    agent_silence: str = ""
    """Of silent agents: how the last request failed (agent_silence.py)."""
    agent_asked: bool = True
    """False while the first request is under way, so that `agent=None` shows nothing."""
    rejection: str | None = None
    """Message of the API server when it called a child of this generation invalid. Fails a job that
    has never run."""
    workload: Object | None = None
    """The object of Kueue that bears the job's name; None without `Settings.kueue`."""
    kueue_served: bool = True
    """Whether the API server serves Kueue's Workloads."""
    flavors: Mapping[str, Object] = field(default_factory=dict)
    """Kueue's ResourceFlavors by name that an admitted Workload uses, while the job has no StatefulSet."""
    refusal: str | None = None
    """Message of the API server when it rejected a child for another reason (a quota), which may
    pass. Fails no job."""
    nodes: NodeHealth | None = None
    """The sick nodes of the cluster; None without `Settings.sick_nodes`."""


@dataclass(frozen=True, kw_only=True)
class Apply:
    """Server-side apply of a child, with `force` and field manager names.MANAGER."""

    body: Object
    if_missing: bool = False
    """Create the object if there is none of that name, and leave an existing one as it is."""
    adds_pods: bool = True
    """Of a StatefulSet: whether it gets more pods, so that a pod must be admitted in a dry run first."""
    pods_of: Object | None = None
    """Of a Workload: the StatefulSet that it queues. A pod of the set is created as a dry run first, and the
    priority that the API server gives that pod is the Workload's."""


@dataclass(frozen=True, kw_only=True)
class Delete:
    """Delete an object if it still has this uid, and its dependents in the background.

    Not found is success.
    """

    kind: Literal["StatefulSet", "Pod", "Service", "Secret", "Workload", "DistributedTrainingJob"]
    name: str
    uid: str
    grace_seconds: int | None = None


@dataclass(frozen=True, kw_only=True)
class Nudge:
    """Wake the controller of a StatefulSet if the API server admits a pod of it in a dry run.

    The controller of a StatefulSet whose pods were rejected retries after up to 1,000 s, and
    nothing else wakes it. Writing an annotation is an event that does. If the dry run is rejected,
    so is this action.
    """

    stateful_set: Object
    """As observed."""
    time: str
    """Value of names.ANNOTATION_NUDGED."""


@dataclass(frozen=True, kw_only=True)
class Annotate:
    """Write annotations of a StatefulSet. Its pods are not touched."""

    stateful_set: Object
    """As observed."""
    annotations: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class PatchStatus:
    """Merge patch of the status of another controller's object, if the object is still as observed."""

    observed: Object
    status: Object
    """Lists replace the stored ones whole."""


Action = Apply | Delete | Nudge | Annotate | PatchStatus


@dataclass(frozen=True, kw_only=True)
class Event:
    """A Kubernetes event about the job. The recorder merges repeated events."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Actions in order, then one status write if `status` differs from the job's, then events."""

    actions: tuple[Action, ...] = ()
    status: Object = field(default_factory=dict)
    """The whole status that the job should have. A field that is missing here is removed from the
    stored status. If nothing is to be written, it equals the stored status."""
    events: tuple[Event, ...] = ()
    requeue_after: float | None = None
    """Seconds until the next reconcile at the latest. 0: as soon as this plan is executed. None:
    wait for an event."""


AgentDelivery = Literal["init-container", "image-volume"]
"""How the agent gets into a pod: an init container copies it out of its image, or the image is a volume of the pod."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Decisions of the operator's own installation about children.

    Part of the planner's input, not a global.
    """

    agent_image: str
    """Image with /dtj/agent.pyz for every pod (the operator's own image)."""
    agent_delivery: AgentDelivery = "init-container"
    master_key: bytes = field(repr=False)
    """The job's agent secret is HMAC-SHA256(master_key, job uid): derived when needed, so no Secret
    has to be read."""
    previous_master_key: bytes | None = field(default=None, repr=False)
    """The master key before it was replaced. The agents of jobs that were started with it know no
    other."""
    image_pull_policy: str | None = None
    agent_pull_secrets: tuple[str, ...] = ()
    """Secrets of each job's namespace that its pods use to pull the agent's image."""
    agent_resources: Mapping[str, str] = field(default_factory=lambda: {"cpu": "100m", "memory": "64Mi"})
    """Requests and limits of the init container that installs the agent. Both are equal, so that a
    Guaranteed pod stays Guaranteed."""
    pod_user: Literal["fixed", "cluster"] = "fixed"
    """User and group of pods that name none: ours, or the ones that the namespace's admission
    chooses (OpenShift)."""
    kueue: bool = False
    """Whether the operator queues jobs with spec.queueName itself, by Workloads of Kueue. Otherwise the
    StatefulSet has Kueue's label."""
    can_avoid_nodes: bool = True
    """Whether pods may be placed on another node. A local run has only one."""
    sick_nodes: SickNodeSettings | None = None
    """When jobs leave nodes that are called sick; None: never."""
    agent_port: int = names.AGENT_PORT
    network_peers: tuple[Object, ...] | None = None
    """NetworkPolicyPeers that may reach the agents' port, besides the job's own pods. None: jobs get no
    NetworkPolicy."""
    listen_host: str = "0.0.0.0"
    """Address that the agents bind to; "[::]" where pods have only IPv6 addresses."""
    progress_write_seconds: float = 25.0
    """Shortest pause between two status writes that change only progress. Agents report progress every 26 s."""
    status_poll_seconds: float = 30.0
    """Pause between two reconciles while the job's pods run. The operator is also called when the agents report
    something, so this is its safety net; `dtj run` asks the agents in each reconcile."""
