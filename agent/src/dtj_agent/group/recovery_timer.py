"""One recovery, timed by phase: detect, stop, schedule, rendezvous, load, firstStep. Pure."""

from __future__ import annotations

from typing import Any, Dict, Optional

from dtj_agent.group.history import History, number
from dtj_agent.group.messages import Now
from dtj_contract.names import RECOVERY_PHASES as PHASES
from dtj_contract.names import Reason

IN_PLACE, POD = "InPlace", "Pod"
SPARE = "Spare"
"""A pod was lost, and a spare took its place at once."""
RESIZE = "Resize"
"""Nothing was lost: the group was stopped to continue with more or fewer pods."""


class RecoveryTimer:
    """Runs from the moment that an attempt broke to the first step of the next one.

    Each phase ends where the next begins.
    """

    def __init__(self, kind: str, reason: str, now: Now, detect: float, last_step: Optional[int]) -> None:
        self.kind = kind
        self.reason = reason
        self.counted = False
        self.sizes = 0, 0
        """Pods of the attempt that broke, and of the one that the recovery led to."""
        self.attempt = 0
        """The attempt that the recovery led to; 0 until it starts."""
        self.time = now.wall - detect
        self.last_step = last_step
        self.resumed_step: Optional[int] = None
        self.source: Optional[str] = None
        """Where the state came from, as the workers report it: memory, replica, partner, volume."""
        self.seconds: Dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self.seconds["detect"] = max(0.0, detect)
        self._since = now.mono
        self._phase = 1
        """Index into PHASES of the running phase."""

    @classmethod
    def after_lost_coordinator(cls, interrupted: Dict[str, Any], last_step: Optional[int], now: Now) -> RecoveryTimer:
        """Returns the recovery of an attempt whose coordinator was lost.

        `interrupted`: what a member's hello reports of it.
        """
        ago = number(interrupted.get("ago"))
        began = Now(now.mono - ago, now.wall - ago)
        recovery = cls(POD, Reason.POD_LOST, began, number(interrupted.get("silence")), last_step)
        recovery.enter("schedule", began)
        return recovery

    def enter(self, phase: str, now: Now) -> None:
        """Begins `phase` and ends the one before.

        Members may come and go while a group gathers, so a phase's time adds up.
        """
        index = PHASES.index(phase)
        if index != self._phase < len(PHASES):
            self._close(now)
            self._phase = index

    def started(self, attempt: int, history: History, now: Now) -> None:
        """Counts the restart in `history`: `attempt` has started."""
        self.attempt = attempt
        self.enter("load", now)
        history.restarts["pod" if self.kind in (POD, SPARE) else "inPlace"] += 1
        history.recovery(self.to_json())

    def finished(self, now: Now) -> None:
        """Ends the last phase: the first step is done."""
        if self._phase < len(PHASES):
            self._close(now)
            self._phase = len(PHASES)

    def ended(self, history: History, now: Now) -> None:
        """Ends the last phase with the job.

        The loading of a script that never reported anything has no known end.
        """
        if self._phase > PHASES.index("load"):
            self.finished(now)
        history.recovery(self.to_json())

    @property
    def is_finished(self) -> bool:
        return self._phase == len(PHASES)

    def _close(self, now: Now) -> None:
        self.seconds[PHASES[self._phase]] += max(0.0, now.mono - self._since)
        self._since = now.mono

    def to_json(self) -> Dict[str, Any]:
        """Returns the recovery as /status shows it: unknown steps are null, later phases absent."""
        lost = None
        if self.last_step is not None and self.resumed_step is not None:
            lost = max(0, self.last_step - self.resumed_step)
        before, after = self.sizes
        return {
            **({} if before == after else {"fromReplicas": before, "toReplicas": after}),
            "attempt": self.attempt, "kind": self.kind, "reason": self.reason, "counted": self.counted,
            "time": self.time, "lastStep": self.last_step, "resumedStep": self.resumed_step, "lostSteps": lost,
            "source": self.source,
            "seconds": {
                phase: round(self.seconds[phase], 4)
                for index, phase in enumerate(PHASES)
                if index < self._phase or self.seconds[phase]
            },
        }  # fmt: skip
