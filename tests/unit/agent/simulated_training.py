"""The training of a simulated world: steps, reports and checkpoints, and the truth to compare the history with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.unit.agent.simulated import Pod
    from tests.unit.agent.simulator import World


class Training:
    """Rank 0 reports a step about each second, and writes a checkpoint every few steps."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.interval = world.rng.choice((2, 5, 1000))
        self.silence = 0.2
        """The share of attempts whose script reports nothing."""
        self.saved = 0
        """The step of the newest checkpoint on the volume."""
        self.furthest = 0
        """The greatest step that any attempt has done."""

    def begin(self, pod: Pod, attempt: int) -> None:
        """Loads the newest checkpoint in a worker of rank 0."""
        if self._world.rng.random() < self.silence:
            return
        resumed = self.saved
        self._report(pod, attempt, phase="loading", resumedStep=resumed)
        self._next(pod, attempt, resumed)

    def _next(self, pod: Pod, attempt: int, step: int) -> None:
        self._world.after(self._world.rng.uniform(0.5, 1.5), pod.life_of(lambda: self._step(pod, attempt, step + 1)))

    def _step(self, pod: Pod, attempt: int, step: int) -> None:
        worker = pod.workers.get(0)
        if worker is None or worker.attempt != attempt or worker.exit_code is not None or worker.held:
            return
        self.furthest = max(self.furthest, step)
        pod.member.reported(attempt, step)
        news: dict[str, Any] = {"phase": "training", "step": step, "stepped": True}
        if step % self.interval == 0 and self._may_commit(attempt):
            self.saved = max(self.saved, step)
            news["checkpoint"] = {"step": step, "path": f"step-{step}", "time": self._world.now(pod).wall}
        self._report(pod, attempt, **news)
        self._next(pod, attempt, step)

    def _may_commit(self, attempt: int) -> bool:
        """Returns whether the lease lets the attempt write: a later one fences it."""
        return self._world.has_volume and self._world.lease <= attempt

    def _report(self, pod: Pod, attempt: int, **news: Any) -> None:
        pod.send_up({"type": "progress", "attempt": attempt, "progress": {"rank": 0, **news}})

    def check(self, final: dict[str, Any]) -> None:
        """Compares an outcome with what was trained."""
        checkpoint = (final["checkpoint"] or {}).get("step", 0)
        if checkpoint > self.saved:
            self._world.fail(f"the outcome has checkpoint {checkpoint}, but the newest one is {self.saved}")
        if ((final["progress"] or {}).get("step") or 0) > self.furthest:
            self._world.fail(f"the outcome has {final['progress']}, but step {self.furthest} is the furthest")
        for recovery in final["recoveries"]:
            resumed, lost = recovery["resumedStep"], recovery["lostSteps"]
            if resumed is not None and resumed > self.saved:
                self._world.fail(f"a recovery resumed beyond checkpoint {self.saved}: {recovery}")
            if lost is not None and not 0 <= lost <= self.furthest:
                self._world.fail(f"lost steps of {self.furthest} at most: {recovery}")
