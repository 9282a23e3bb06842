"""What a reconcile sees and what it decides: the words between the planner and the world around it.

`World` is either a Kubernetes API server (dtj_operator.kube) or this machine (dtj.local): the planner can't tell.
Objects are plain dicts as the API server gives them; a typed model would drop fields of a user's pod template.
`plan(job, observed, now, settings)` is in plan.py; `now` is Unix seconds, and everything else is in these types.

What the planner asks of a World:
1. Show the job as it is stored, with its status, and all of its children: those of its name, whoever owns them.
2. Carry a plan out in its order: actions, then the status if it differs, then events. Stop at the first error; look and
   plan again. Any of it may have been done before, or be done twice.
3. Look again after `requeue_after`, and whenever the job, a child or a pod changes.
4. If the API server refuses a child, plan again at once with `rejection` set (its own validation calls the child invalid) or
   with `refusal` (any other answer: a quota, an admission plugin, a missing right); and don't try the same again at every
   look, but in bounded time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from dtj_contract import names

Object = dict[str, Any]
SILENT_POLL_SECONDS = 60.0  # between two questions to an agent that does not answer, at the most


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The children as they are now. `None` and `()` mean: looked, and not there."""

    stateful_set: Object | None = None
    service: Object | None = None
    pods: tuple[Object, ...] = ()
    """All pods with the label names.LABEL_JOB of this job, terminating ones too."""
    agent: Object | None = None
    """`/status` of the agent of pod 0 (docs/reference/contract.md); None if it could not be asked."""
    agent_silent_seconds: float = 0.0
    """For how long the agent of the present pod 0 has left every question unanswered; 0 after an answer, or without a pod 0."""
    rejection: str | None = None
    """What the API server said when it called one of this generation's children invalid."""
    refusal: str | None = None
    """What it said when it refused one of them for another reason (a quota), which may pass."""


@dataclass(frozen=True, kw_only=True)
class Apply:
    """Server-side apply of a child, `force` on, field manager names.MANAGER."""

    body: Object
    if_missing: bool = False
    """Make it if there is none of that name; what is there stays as it is."""


@dataclass(frozen=True, kw_only=True)
class Delete:
    """Delete an object if it still has this uid, its dependents in the background. Not found is success."""

    kind: Literal["StatefulSet", "Pod", "Service", "Secret", "DistributedTrainingJob"]
    name: str
    uid: str
    grace_seconds: int | None = None


@dataclass(frozen=True, kw_only=True)
class Nudge:
    """Ask by a dry run whether the API server would take a pod of this StatefulSet. If it does, wake the set's controller.

    The controller of a StatefulSet whose pods were refused tries again after up to 1,000 s, and nothing else wakes it: an
    annotation is written, which is an event that does. If the pod is refused, so is this action.
    """

    stateful_set: Object
    """As observed."""
    time: str
    """What is written into names.ANNOTATION_NUDGED."""


Action = Apply | Delete | Nudge


@dataclass(frozen=True, kw_only=True)
class Event:
    """One Kubernetes event about the job, deduplicated by the recorder."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Actions in order, then one status write if `status` differs from the job's own, then events.

    `status` is the whole status that the job should have: a field that is not in it is to be removed. Where nothing is to
    be written it equals the job's own. 0 as `requeue_after`: look again as soon as this is carried out.
    """

    actions: tuple[Action, ...] = ()
    status: Object = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    requeue_after: float | None = None
    """Seconds until this job must be looked at again even if nothing is heard of it; None: only on an event."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the operator's own installation decides about children; part of the planner's input, not a global."""

    agent_image: str
    """Image whose /dtj/agent.pyz the init container copies into the pod (the operator's own image)."""
    master_key: bytes = field(repr=False)
    """The job's agent secret is HMAC-SHA256(master_key, job uid): made anew at will, so none has to be read back."""
    previous_master_key: bytes | None = field(default=None, repr=False)
    """The master key before it was replaced: the agents of jobs that were started then know no other."""
    image_pull_policy: str | None = None
    agent_resources: Mapping[str, str] = field(default_factory=lambda: {"cpu": "100m", "memory": "64Mi"})
    """Requests and limits of the init container that brings the agent; the same, so that a Guaranteed pod stays one."""
    pod_user: Literal["fixed", "cluster"] = "fixed"
    """User and group of pods that name none: ours, or the ones that the namespace's admission chooses (OpenShift)."""
    agent_port: int = names.AGENT_PORT
    listen_host: str = "0.0.0.0"
    """What the agents bind to; "[::]" where pods have IPv6 addresses only."""
    progress_write_seconds: float = 30.0
    """Progress alone is written to the status no more often than this."""
    status_poll_seconds: float = 2.0
    """How often the agent's /status is asked while the job is active and the agent answers."""

    def poll_seconds(self, silent: float) -> float:
        """Until an agent that has not answered for `silent` seconds is asked again: half as long again, within bounds."""
        return min(max(self.status_poll_seconds, silent / 2), SILENT_POLL_SECONDS)


class World(Protocol):
    """Where a plan is carried out."""

    async def observe(self, job: Object) -> Observed: ...

    async def apply(self, job: Object, plan: Plan) -> None: ...
