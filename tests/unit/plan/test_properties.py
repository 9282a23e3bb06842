"""Invariants of the planner under any sequence of changes, with a crash after any step.

Hypothesis prints a failing seed, which replays.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dtj_contract import names
from dtj_core.api.status import FAILURES, RECOVERIES, Status
from dtj_core.plan import plan
from dtj_core.plan.model import Object
from dtj_core.plan.status_throttle import significant_fields
from tests.unit.plan.objects import NOW, World, agent, container, ended, job, outcome, pod, service, true_conditions

garbage = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
counts = st.integers(0, 4)
failure = st.fixed_dictionaries(
    {
        "attempt": counts,
        "rank": counts,
        "reason": st.sampled_from(["WorkerFailed", "OOMKilled"]),
        "node": st.sampled_from(["w0", "w1"]),
        "time": st.sampled_from([NOW, NOW + 40]),
    }
)
recovery = st.fixed_dictionaries({"attempt": counts, "kind": st.just("Pod"), "seconds": st.just({"firstStep": 0.1})})
status_page = st.fixed_dictionaries(
    {
        "attempt": counts,
        "phase": st.sampled_from(["Rendezvous", "Running", "Stopping", "Finished"]),
        "phaseReason": st.sampled_from(["WorkerFailed", "PodLost", "Rendezvous", "no such reason"]),
        "startTime": st.sampled_from([NOW, NOW + 500, None]),
        "restarts": st.fixed_dictionaries({"inPlace": counts, "pod": counts, "counted": counts}),
        "productiveSeconds": st.floats(0, 1000),
        "progress": st.none()
        | st.fixed_dictionaries({"step": counts, "totalSteps": counts, "time": st.floats(NOW, NOW + 9999)}),
        "failures": st.lists(failure, max_size=7),
        "recoveries": st.lists(recovery, max_size=7),
        "leader": st.none() | st.fixed_dictionaries({"ordinal": counts, "pod": st.just("digits-1"), "epoch": counts}),
        "members": st.lists(
            st.fixed_dictionaries({"ordinal": counts, "state": st.sampled_from(["idle", "running"])}), max_size=4
        ),
        "replicas": counts,
    }
).map(lambda fields: agent(**fields))
broken_page = st.dictionaries(st.sampled_from(list(agent())), garbage, max_size=4).map(lambda fields: agent(**fields))

container_states = st.sampled_from(
    [
        container(),
        container(waiting={"reason": "ImagePullBackOff"}),
        container(waiting={"reason": "ContainerCreating"}),
        container(restarts=2, last=ended("x", 1), waiting={"reason": "CrashLoopBackOff"}),
        container(terminated={"exitCode": 137, "reason": "OOMKilled"}),
    ]
)
Pod = tuple[bool, Object]
pod_states = st.lists(st.none() | st.tuples(st.booleans(), container_states), min_size=3, max_size=3)

steps = st.one_of(
    st.tuples(st.just("look"), st.none() | st.integers(0, 4)),
    st.tuples(st.just("pods"), pod_states),
    st.tuples(st.just("agent"), st.none() | status_page | broken_page),
    st.tuples(st.just("silence"), st.sampled_from([0.0, 5.0, 90.0])),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 1.0, 31.0, 4000.0])),
    st.tuples(st.just("spec"), st.sampled_from([
        {"suspend": True}, {"suspend": False}, {"image": "b"}, {"replicas": 2}, {"cleanPodPolicy": "None"},
        {"activeDeadlineSeconds": 50}, {"ttlSecondsAfterFinished": 20}, {"backend": "mpi"}, {"backend": "auto"},
        {"replicas": 2000}, {"restart": {"avoidNodes": {"afterFailures": 1, "forSeconds": 60}}},
        {"startupDeadlineSeconds": 30}, {"spares": 1}, {"spares": 0}, {"elastic": {"minReplicas": 1}}, {"replicas": 4},
        {"elastic": {"minReplicas": 2, "maxReplicas": 3}},
    ])),
    st.tuples(st.just("lose"), st.sampled_from(["stateful_set", "service"])),
    st.tuples(st.just("foreign service"), st.none()),
    st.tuples(st.just("rejection"), st.none()),
    st.tuples(st.just("refusal"), st.sampled_from([None, "exceeded quota"])),
    st.tuples(st.just("outcome"), st.sampled_from(["Succeeded", "Failed"])),
    st.tuples(st.just("pods go"), st.none()),
)  # fmt: skip


class Run:
    """Applies random steps to a world, and checks the invariants after each."""

    def __init__(self) -> None:
        self.world = World(job())
        self.now = NOW
        self.ended: Object | None = None
        self.runs_at_end = 0
        self.counters: dict[str, float] = {}

    def step(self, kind: str, value: Any) -> None:
        world = self.world
        changes: dict[str, Callable[[], None]] = {
            "look": lambda: self.look(value),
            "pods": lambda: world.see(pods=tuple(self.pod(o, *p) for o, p in enumerate(value) if p)),
            "agent": lambda: world.see(agent=value, agent_silent_seconds=0.0),
            "silence": lambda: world.see(agent=None, agent_silent_seconds=value, agent_asked=value > 0),
            "wait": lambda: setattr(self, "now", self.now + value),
            "spec": lambda: self.change(value),
            "lose": lambda: world.see(**{value: None}),
            "foreign service": lambda: world.see(service=service(owner_uid="other", name="other")),
            "rejection": lambda: world.see(rejection="no"),
            "refusal": lambda: world.see(refusal=value),
            "outcome": lambda: world.see(
                pods=(self.pod(0, False, container(restarts=1, last=ended(outcome(value, attempt=2), 1))),)
            ),
            "pods go": lambda: world.see(pods=(), agent=None),
        }
        changes[kind]()
        self.check()

    def pod(self, ordinal: int, deleted: bool, state: Object) -> Object:
        owner = self.world.set_uid or "earlier"
        return pod(ordinal, owner=owner, deleted=deleted, phase="Running", containerStatuses=[state])

    def change(self, spec: Object) -> None:
        if self.world.job is not None:
            self.world.job["spec"] |= spec
            self.world.job["metadata"]["generation"] += 1

    def look(self, crash_after: int | None) -> None:
        self.world.reconcile(self.now, crash_after=crash_after)

    def check(self) -> None:
        status = self.world.status
        if self.world.job is None:
            return
        # The API server accepts the status.
        Status.model_validate(json.loads(json.dumps(status, allow_nan=False)), by_alias=True, by_name=False)
        assert len(status.get("failures", ())) <= FAILURES
        assert len(status.get("recoveries", ())) <= RECOVERIES
        # At most one condition is true, and it is the phase. Stalled and AgentUnreachable may be true beside it.
        beside = (names.STALLED, names.AGENT_UNREACHABLE)
        true = [kind for kind in true_conditions(status) if kind not in beside]
        assert len(true) <= 1, true
        assert not status or status["phase"] == (true[0] if true else "Pending")
        # Counters never decrease.
        sums = {
            **status.get("restarts", {}),
            "attempt": status.get("attempt", 0),
            "kept": status.get("productiveSeconds", 0.0),
        }
        for name, value in sums.items():
            assert value >= self.counters.get(name, 0), name
        self.counters = sums
        # Terminal conditions are final.
        end = [c for c in status.get("conditions", ()) if c["type"] in (names.COMPLETE, names.FAILED)]
        if self.ended is not None:
            assert end == self.ended
            assert self.world.runs == self.runs_at_end
        elif end:
            self.ended, self.runs_at_end = deepcopy(end), self.world.runs

    def check_fixpoint(self) -> None:
        """Checks that an executed plan leaves nothing to do: no action, no write, no event."""
        self.world.settle(self.now)
        self.check()
        if self.world.job is None:
            return
        again = plan(self.world.job, self.world.observed, self.now, self.world.settings)
        assert (again.actions, again.events) == ((), ())
        assert again.status == self.world.status
        assert again.requeue_after is None or again.requeue_after > 0


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=25))
def test_planner_invariants_hold_after_every_step(script: list[tuple[str, Any]]) -> None:
    run = Run()
    for kind, value in script:
        run.step(kind, value)
    run.check_fixpoint()


@settings(max_examples=100, deadline=None)
@given(st.lists(steps, max_size=12), st.lists(st.integers(0, 3), max_size=8))
def test_crashes_do_not_change_the_final_state_of_a_job(script: list[tuple[str, Any]], crashes: list[int]) -> None:
    straight, crashing = Run(), Run()
    for kind, value in script:
        # Both worlds are reconciled at the same steps.
        if kind in ("look", "rejection"):
            continue
        straight.step(kind, value)
        crashing.step(kind, value)
    for steps_done in crashes:
        crashing.look(steps_done)
    straight.check_fixpoint()
    crashing.check_fixpoint()
    assert (crashing.world.job is None) == (straight.world.job is None)
    # Only throttled fields and texts depend on when a change was first observed.
    assert significant_fields(crashing.world.status) == significant_fields(straight.world.status)
    assert crashing.world.observed == straight.world.observed
