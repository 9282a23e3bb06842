"""The faults that hit a simulated world (simulator.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.agent.simulated import Pod

if TYPE_CHECKING:
    from tests.unit.agent.simulator import World

FAULT_SECONDS = 60.0


def strike(world: World) -> None:
    if world.time >= FAULT_SECONDS:
        return
    world.after(world.rng.expovariate(1 / 6.0), world.fault)
    pod = world.rng.choice(world.everyone)
    kind = world.rng.choice(("worker", "worker", "agent", "pod", "leave", "link", "partition", "held", "twin"))
    if not pod.alive or pod.leaving:
        return
    if kind in ("pod", "leave", "twin") and (pod.is_twin or not others_know(world, pod)):
        # The last pod that remembers the job stays: a cluster's operator has read that memory.
        return
    if kind in ("agent", "partition") and not may_be_away(world, pod):
        return
    if kind == "partition" and any(twin.ordinal == pod.ordinal for twin in world.twins):
        # The pod that it has replaced may take its place, and the group start while it completes the job (0015).
        return
    if kind == "twin" and not may_replace(world, pod):
        return
    note(world, kind, pod)
    if kind == "worker" and pod.workers:
        worker = world.rng.choice(list(pod.workers.values()))
        if worker.exit_code is None and not worker.requested and not worker.held:
            world.failed.add(worker.attempt)
        world.end(pod, worker, world.rng.choice((-9, 1, -11)))
    elif kind == "held" and pod.workers and pod.member.state == "running":
        world.hold(world.rng.choice(list(pod.workers.values())))
    elif kind == "agent":
        world.bring_back(pod, keep_disk=True)
    elif kind == "pod":
        world.bring_back(pod, keep_disk=False)
    elif kind == "twin":
        replace(world, pod)
    elif kind == "leave":
        pod.leaving = pod.election.is_leaving = True
        world.member_does(pod, pod.member.terminate(world.now(pod)))
    elif kind == "link" and pod.link is not None:
        world.cut(pod.link)
    elif kind == "partition":
        world.blocked.add(pod)
        for other in world.everyone:
            if other.link is not None and not world.reachable(other, other.link.hub):
                world.cut(other.link)
        world.after(world.rng.uniform(0.1, 10.0), lambda: world.blocked.discard(pod))


def may_be_away(world: World, pod: Pod) -> bool:
    """Returns whether the others may continue without this pod, or wait for it.

    Without a volume, pods that were all replaced look like a new job to each other.
    """
    is_fixed = world.spec.spares == 0 and world.spec.elastic is None
    return world.has_volume or is_fixed or others_know(world, pod)


def note(world: World, kind: str, pod: Pod) -> None:
    world.log_line(f"FAULT {kind}, pod {pod}")
    world.faults.setdefault(max(world.started, default=0), []).append(kind)


def may_replace(world: World, pod: Pod) -> bool:
    """Returns whether the pod may get a twin.

    With a volume and a fixed size, all but one may: the lease fences every start. Otherwise fewer than half, because
    promises are also what fences the end of the job, and the new pods have made none.
    """
    twins = {twin.ordinal for twin in world.twins} | {pod.ordinal}
    is_fixed = world.spec.spares == 0 and world.spec.elastic is None
    return len(twins) < world.replicas if world.has_volume and is_fixed else 2 * len(twins) < world.replicas


def replace(world: World, pod: Pod) -> None:
    """Recreates the pod while the old one lives on: only the control plane has lost its node."""
    pod.is_twin = True
    new = world.pods[pod.ordinal] = Pod(world, pod.ordinal, pod.generation + 1)
    world.twins.append(pod)
    world.after(world.rng.uniform(0.1, 12.0), new.boot)
    stale = world.rng.choice((0.0, 1.0, 10.0))
    world.after(stale, lambda: world.names.__setitem__(pod.ordinal, world.pods[pod.ordinal]))
    world.after(world.rng.uniform(5.0, 40.0), lambda: remove(world, pod))


def remove(world: World, twin: Pod) -> None:
    """Removes the twin: its node has been cleaned up."""
    note(world, "pod", twin)
    world.twins.remove(twin)
    world.blocked.discard(twin)
    twin.kill()


def others_know(world: World, pod: Pod) -> bool:
    """Returns whether the job's memory survives the loss of this pod's disk."""
    others = [other for other in world.pods if other is not pod and not other.leaving and not other.is_twin]
    if not world.has_volume:
        # A pod whose predecessor lives on may be taken for it.
        twins = {twin.ordinal for twin in world.twins}
        reachable = [other for other in others if other.alive and other not in world.blocked]
        others = [other for other in reachable if other.ordinal not in twins]
    if world.outcomes:
        return any(other.final is not None for other in others)
    return not world.started or any(other.saved.get("attempt") == max(world.started) for other in others)
