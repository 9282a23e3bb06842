"""The restart decision: whether the group restarts, what that costs, and when. Pure.

| what broke the attempt                 | what follows                                                |
|----------------------------------------|-------------------------------------------------------------|
| a permanent error (names.PERMANENT)    | the job fails                                               |
| a file not found before the first step | counted; the job fails after FILE_NOT_FOUND_TRIES in a row  |
| another failure of a worker            | counted; waits if attempts end soon and without a step      |
| a rank that hangs                      | the same                                                    |
| a crashed agent, a stuck worker        | counted                                                     |
| a lost connection, both agents alive   | free three times without progress, then counted; waits      |
| a lost pod                             | free: an eviction or a lost node is not the training's fault |

A counted restart takes one from the budget: at most `max_restarts` within any `window` seconds, or
the job fails. Progress gives back: a new checkpoint refills the whole budget, a step that no
attempt had done forgives lost connections.

A failure is answered at once, because that is what an agent is for. The next attempt waits only
where the one before ended soon and without a step, so that a volume or a name server that is away
for a minute does not cost the whole budget.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Union

from dtj_agent.group.group_spec import GroupSpec
from dtj_agent.group.history import History, number
from dtj_agent.group.messages import Now
from dtj_contract import names
from dtj_contract.names import Reason

Json = Dict[str, Any]

FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
LONGEST_NETWORK_WAIT_SECONDS = 120.0
"""While a network is being repaired, the waits must not cost a job its budget within minutes."""
QUICK_SECONDS = 10.0
"""An attempt that lived longer may have trained: a plain torchrun script never reports a step."""
FREE_CONNECTION_LOSSES = 3
"""Within the window and without progress."""


class Restart(NamedTuple):
    """The group restarts."""

    counted: bool = False
    """A restart was taken from the budget."""
    wait: float = 0.0
    """Seconds by which this failure delays the next attempt."""
    why: str = ""
    """Why the next attempt waits."""


class Fail(NamedTuple):
    """The job fails."""

    reason: str
    message: str
    failure: Json
    """The failure that the outcome shows."""


Decision = Union[Restart, Fail]


class RestartPolicy:
    """Decides by the job's spec, and keeps the books of the budget.

    `History` holds the counts that a replaced pod 0 must continue. A worker's failure is charged at
    once; the charge for a crash, a stuck worker or a lost connection is deferred to `charge_deferred`.
    """

    def __init__(self, spec: GroupSpec) -> None:
        self._spec = spec
        self.not_before = 0.0
        """Monotonic time before which no attempt starts."""
        self.deferred: Optional[Json] = None
        """The failure that `charge_deferred` charges before the next attempt."""
        self._quick_failures = 0
        """Attempts in a row that ended soon and without a step."""
        self._is_charged = False
        self._network_failed = False

    def attempt_broke(self) -> None:
        """Opens the account of the next broken attempt, which is charged at most once."""
        self.deferred, self._is_charged, self._network_failed = None, False, False

    def decide(self, failure: Json, history: History, now: Now, stepped: bool = False, lived: float = 0.0) -> Decision:
        """Returns what follows `failure`, the newest in `history`, of an attempt `lived` seconds old.

        `stepped`: the attempt has done a step, as far as its workers report steps.
        """
        reason = failure["reason"]
        if reason in names.PERMANENT:
            return Fail(reason, failure["message"], failure)
        if reason == Reason.POD_LOST:
            return Restart()
        if reason in (Reason.AGENT_CRASHED, Reason.WORKER_STUCK):
            return self._defer(failure)
        if reason == Reason.CONNECTION_LOST:
            return self._after_lost_connection(failure, history, now)
        return self._after_worker_failure(failure, history, now, stepped, lived)

    def charge_deferred(self, history: History, now: Now) -> Decision:
        """Charges the deferred failure.

        The coordinator calls it once it is sure that the job is its own to end: a process that has
        started nothing may belong to a pod 0 that was replaced.
        """
        assert self.deferred is not None
        return self._charge(self.deferred, history, now)

    # --- by what broke the attempt --------------------------------------------------------------------------------

    def _after_worker_failure(self, failure: Json, history: History, now: Now, stepped: bool, lived: float) -> Decision:
        if failure["reason"] == Reason.FILE_NOT_FOUND:
            tries = history.ends_in_a_row(Reason.FILE_NOT_FOUND)
            if tries >= names.FILE_NOT_FOUND_TRIES:
                text = "%s (%d attempts in a row)" % (failure["message"], tries)
                return Fail(Reason.FILE_NOT_FOUND, text, failure)
            if tries == 1:
                text = "%s; retrying, %d attempts in total" % (failure["message"], names.FILE_NOT_FOUND_TRIES)
                history.event("Warning", Reason.FILE_NOT_FOUND, text, now.wall)
        charged = self._charge(failure, history, now)
        if isinstance(charged, Fail):
            return charged
        self._quick_failures = 0 if stepped or lived >= QUICK_SECONDS else self._quick_failures + 1
        wait = self._hold_back(self._quick_failures, LONGEST_WAIT_SECONDS, now)
        return charged._replace(wait=wait, why="the attempt ended before its first step" if wait else "")

    def _after_lost_connection(self, failure: Json, history: History, now: Now) -> Decision:
        """Defers a charge from the fourth lost connection without progress on.

        A lost connection is nobody's fault, and the next attempt resumes from the last checkpoint.
        But a network that breaks every attempt would restart the group for ever.
        """
        if self._network_failed:  # one fault, however many connections it broke
            return Restart()
        self._network_failed = True
        history.losses = [time for time in history.losses if time > now.wall - self._spec.window] + [now.wall]
        history.revision += 1
        losses = len(history.losses)
        if losses > FREE_CONNECTION_LOSSES:
            self._defer(failure)
        wait = self._hold_back(losses, LONGEST_NETWORK_WAIT_SECONDS, now)
        return Restart(wait=wait, why="%d connections lost without progress" % losses if wait else "")

    # --- budget and back-off --------------------------------------------------------------------------------------

    def _defer(self, failure: Json) -> Restart:
        if not self._is_charged:
            self.deferred = failure
        return Restart()

    def _charge(self, failure: Json, history: History, now: Now) -> Decision:
        """Takes a restart from the budget; the job fails if none is left within the window."""
        spent = [time for time in sorted(history.spent) if time > now.wall - self._spec.window]
        if len(spent) >= self._spec.max_restarts:
            why = "the budget of %d restarts within %.0f s is spent; the last failure: %s"
            text = why % (self._spec.max_restarts, self._spec.window, failure["message"])
            return Fail(Reason.RESTART_BUDGET_SPENT, text, failure)
        history.spent = [*spent, now.wall]
        history.restarts["counted"] += 1
        history.revision += 1
        self._is_charged, self.deferred = True, None
        return Restart(counted=True)

    def _hold_back(self, tries: int, longest: float, now: Now) -> float:
        """Returns the seconds to wait: 0, 1, 2, 4, ... up to `longest`, by the number of `tries`."""
        wait = 0.0 if tries < 2 else min(longest, FIRST_WAIT_SECONDS * 2 ** min(tries - 2, 30))
        self.not_before = now.mono + wait
        return wait


# --- what progress gives back -----------------------------------------------------------------------------------------


def checkpoint_written(history: History, step: int) -> None:
    """Refills the budget if no earlier checkpoint reached `step`.

    No failure takes that progress away. A checkpoint that is written again after a fall back is no
    new progress. Call before `history.checkpoint` changes.
    """
    if history.checkpoint is None or step > number(history.checkpoint.get("step")):
        _refill(history)


def file_saved(history: History, newest: float, age: float) -> None:
    """Refills the budget if a script that reports no checkpoints has saved a file since.

    `newest`: the file's modification time; `age`: seconds since the attempt started. A file that an
    attempt writes as it begins shows nothing, because the next attempt would write it as well.
    """
    before = history.saved
    if before is not None and newest <= before:
        return
    history.saved = newest
    history.revision += 1
    if before is not None and age >= QUICK_SECONDS:
        _refill(history)


def step_done(history: History, step: float) -> None:
    """Forgives the lost connections if no attempt had done `step` before."""
    if step > history.furthest:
        history.furthest, history.losses = int(step), []


def _refill(history: History) -> None:
    history.spent, history.losses = [], []
