"""The restart decision: whether the group restarts, what that costs, and when. Pure.

| what broke the attempt                 | what follows                                                |
|----------------------------------------|-------------------------------------------------------------|
| what a rule of the user matches        | the rule's action (restart_rules.py)                        |
| a permanent error (names.PERMANENT)    | the job fails                                               |
| the same, if it may have been handled  | counted; the job fails at the second in a row               |
| a file not found before the first step | counted; the job fails after FILE_NOT_FOUND_TRIES in a row  |
| another failure of a worker, a hang    | counted; waits if attempts end soon and without a step      |
| a crashed agent, a stuck worker, a     | counted                                                     |
| container killed for its memory        |                                                             |
| a lost connection, both agents alive   | free three times without progress, then counted; waits      |
| a pod that its kubelet evicted for     | free three times without progress, then counted; waits      |
| what it used, or whose node restarted; |                                                             |
| an agent that SIGTERM ended in its pod |                                                             |
| a pod lost for an unknown reason       | free; waits from the fourth time without progress on        |
| a pod preempted, drained, deleted, or  | free: not the training's fault                              |
| lost with its node                     |                                                             |

A counted restart takes one from the budget: at most `max_restarts` within any `window` seconds, or
the job fails. After `max_without_progress` counted restarts without progress the job fails too,
however long that took. Progress gives back: a new checkpoint refills the whole budget, a step that
no attempt had done forgives losses.

The next attempt waits only where the one before ended soon and without a step, so that a volume or
a name server that is away for a minute does not cost the whole budget.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Set, Union

from dtj_agent.group.group_spec import GroupSpec
from dtj_agent.group.history import History, number
from dtj_agent.group.messages import Now
from dtj_agent.group.restart_rules import first_match
from dtj_contract import names
from dtj_contract.names import Reason
from dtj_contract.operator_message import RestartBudget

Json = Dict[str, Any]

FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
LONGEST_NETWORK_WAIT_SECONDS = 120.0
"""While a network is being repaired, the waits must not cost a job its budget within minutes."""
QUICK_SECONDS = 10.0
"""An attempt that lived longer may have trained: a plain torchrun script never reports a step."""
HUNG_SOON_SECONDS = 3600.0
"""An attempt that hung before that made no progress, as far as the budget is concerned."""
KEEP_LOSSES = 1000
FREE_LOSSES = 3
"""Lost connections, or attempts broken by lost pods, within the window and without progress."""
LOST_BY_CLUSTER = frozenset({Reason.POD_DELETED, Reason.POD_EVICTED, Reason.PREEMPTED, Reason.NODE_LOST})
LOST_POD = LOST_BY_CLUSTER | {Reason.POD_LOST, Reason.AGENT_TERMINATED}
LOSSES = LOST_POD | {Reason.AGENT_CRASHED, Reason.WORKER_STUCK, Reason.CONNECTION_LOST}
"""Failures without a worker to blame."""


class Restart(NamedTuple):
    """The group restarts."""

    counted: bool = False
    """A restart was taken from the budget."""
    wait: float = 0.0
    """Seconds by which this failure delays the next attempt."""
    why: str = ""
    """Why the next attempt waits."""
    elsewhere: bool = False
    """The pod of the failure is to be replaced on another node first."""


class Fail(NamedTuple):
    """The job fails."""

    reason: str
    message: str
    failure: Json
    """The failure that the outcome shows."""


Decision = Union[Restart, Fail]


class RestartPolicy:
    """Decides by the job's spec, and keeps the books of the budget.

    `History` holds the counts that the next coordinator must continue. A worker's failure is charged at
    once; the charge for a loss is deferred to `charge_deferred`.
    """

    def __init__(self, spec: GroupSpec) -> None:
        self._spec = spec
        self.not_before = 0.0
        """Monotonic time before which no attempt starts."""
        self.deferred: Optional[Json] = None
        """The failure that `charge_deferred` charges before the next attempt."""
        self._quick_failures = 0
        """Attempts in a row that ended soon and without a step."""
        self._lived = 0.0
        """Seconds that the broken attempt lived."""
        self._network_failed = False
        self._lost_pods: Set[int] = set()
        """Ordinals whose pods this attempt lost, for no reason that makes the loss free."""
        self._held_for_pods = 0.0
        """The value of `not_before` that lost pods are the cause of."""

    def attempt_broke(self) -> None:
        """Opens the account of the next broken attempt, which is charged at most once."""
        self.deferred, self._network_failed = None, False
        self._lost_pods, self._lived = set(), 0.0

    def budget(self, history: History) -> RestartBudget:
        """Returns the budget that holds: the operator may have handed over a later one than the pod's own."""
        return later_budget(self._spec.budget, history.budget)

    def take_budget(self, handed: Optional[RestartBudget], history: History) -> str:
        """Takes the operator's budget if it is later than the one that holds; returns the change as text."""
        current = self.budget(history)
        if handed is None or handed.generation <= current.generation:
            return ""
        history.budget = handed
        history.revision += 1
        changes = []
        if handed[1:4] != current[1:4]:
            text = "the restart budget is now %d within %.0f s, and %d without progress"
            changes.append(text % handed[1:4])
        if handed.checkpoint_keep not in (None, current.checkpoint_keep):
            changes.append("the next attempt keeps %d checkpoints" % handed.checkpoint_keep)
        return "; ".join(changes)

    def apply_rules(self, failure: Json) -> Json:
        """Adds the action of the first rule that matches to the failure, and returns the failure."""
        rule = first_match(self._spec.rules, failure)
        if rule is not None:
            failure.update(action=rule.action, rule=rule.number)
        return failure

    def decide(self, failure: Json, history: History, now: Now, stepped: bool = False, lived: float = 0.0) -> Decision:
        """Returns what follows `failure`, the newest in `history`, of an attempt `lived` seconds old.

        `stepped`: the attempt has done a step, as far as its workers report steps.
        """
        self._lived = max(self._lived, lived)
        if failure["reason"] in LOSSES or _is_container_kill(failure):
            return self._after_loss(failure, history, now)
        action = failure.get("action")
        if action == names.ACTION_FAIL:
            return _failed_by_rule(failure)
        if action is None and failure["reason"] in names.PERMANENT and not self._is_doubtful(failure, history, now):
            return Fail(failure["reason"], failure["message"], failure)
        return self._after_worker_failure(failure, history, now, stepped, lived)

    def _is_doubtful(self, failure: Json, history: History, now: Now) -> bool:
        """Returns whether a permanent error is tried once more: the script may have handled that error."""
        if not failure.get("unsure") or history.ends_in_a_row(failure["reason"]) > 1:
            return False
        text = failure["message"] + "; retrying once, because a script that handles this error may look the same"
        history.event("Warning", failure["reason"], text, now.wall)
        return True

    def charge_deferred(self, history: History, now: Now) -> Decision:
        """Charges the deferred failure.

        The coordinator calls it once it is sure that the job is its own to end: a process that has
        started nothing may belong to a pod that was replaced.
        """
        assert self.deferred is not None
        if self.deferred.get("action") == names.ACTION_FAIL:
            return _failed_by_rule(self.deferred)
        if _is_charged(self.deferred, history):  # by another coordinator, as the history shows that has arrived since
            self.deferred = None
            return Restart()
        return self._charge(self.deferred, history, now, self._is_known(history))

    # --- by what broke the attempt --------------------------------------------------------------------------------

    def _after_worker_failure(self, failure: Json, history: History, now: Now, stepped: bool, lived: float) -> Decision:
        action = failure.get("action")
        if action is None and failure["reason"] == Reason.FILE_NOT_FOUND:
            tries = history.ends_in_a_row(Reason.FILE_NOT_FOUND)
            if tries >= names.FILE_NOT_FOUND_TRIES:
                text = "%s (%d attempts in a row)" % (failure["message"], tries)
                return Fail(Reason.FILE_NOT_FOUND, text, failure)
            if tries == 1:
                text = "%s; retrying, %d attempts in total" % (failure["message"], names.FILE_NOT_FOUND_TRIES)
                history.event("Warning", Reason.FILE_NOT_FOUND, text, now.wall)
        charged: Decision = Restart()
        if action != names.ACTION_RESTART_FREE:
            # Learnt pauses spread hangs so far that the window would never end a job that hangs for good.
            hung_soon = failure["reason"] == Reason.WORKER_HUNG and lived <= HUNG_SOON_SECONDS
            charged = self._charge(failure, history, now, hung_soon or self._is_known(history))
        if isinstance(charged, Fail):
            return charged
        self._quick_failures = 0 if stepped or lived >= QUICK_SECONDS else self._quick_failures + 1
        wait = self._hold_back(self._quick_failures, LONGEST_WAIT_SECONDS, now)
        why = "the attempt ended before its first step" if wait else ""
        return charged._replace(wait=wait, why=why, elsewhere=action == names.ACTION_RESTART_ELSEWHERE)

    def _after_loss(self, failure: Json, history: History, now: Now) -> Restart:
        """Decides about a member that was lost; again, once the reason of the loss is known."""
        reason, action = failure["reason"], failure.get("action")
        is_free = action == names.ACTION_RESTART_FREE
        if reason not in LOST_POD or is_free or (reason in LOST_BY_CLUSTER and not failure.get("ownFault")):
            self._forgive_lost_pod(failure["ordinal"], history)
            result = Restart()
        else:
            result = self._after_lost_pod(failure, history, now)
        if reason == Reason.CONNECTION_LOST:
            result = self._after_lost_connection(failure, history, now)
        explained = action is None and reason in LOST_BY_CLUSTER and not failure.get("ownFault")
        if is_free or explained:
            self.deferred = None if _is_same_loss(self.deferred, failure) else self.deferred
        elif action is not None or reason in (Reason.AGENT_CRASHED, Reason.WORKER_STUCK, Reason.OOM_KILLED):
            self._defer(failure, history)
        return result._replace(elsewhere=action == names.ACTION_RESTART_ELSEWHERE)

    def _after_lost_connection(self, failure: Json, history: History, now: Now) -> Restart:
        """Defers a charge from the fourth lost connection without progress on.

        A lost connection is nobody's fault, and the next attempt resumes from the last checkpoint.
        But a network that breaks every attempt would restart the group for ever.
        """
        if self._network_failed:  # one fault, however many connections it broke
            return Restart()
        self._network_failed = True
        history.losses = [*self._within_window(history.losses, history, now)[-KEEP_LOSSES:], now.wall]
        history.revision += 1
        losses = len(history.losses)
        if losses > FREE_LOSSES:
            self._defer(failure, history)
        wait = self._hold_back(losses, LONGEST_NETWORK_WAIT_SECONDS, now)
        return Restart(wait=wait, why="%d connections lost without progress" % losses if wait else "")

    def _after_lost_pod(self, failure: Json, history: History, now: Now) -> Restart:
        """Holds the next attempt back from the fourth attempt without progress on that lost pods have broken.

        A job that fills its node's disk is evicted by its kubelet again and again.
        """
        is_first = not self._lost_pods
        self._lost_pods.add(failure["ordinal"])
        if is_first:  # one loss, however many pods went with it
            history.pod_losses = [*self._within_window(history.pod_losses, history, now)[-KEEP_LOSSES:], now.wall]
            history.revision += 1
        losses = len(history.pod_losses)
        if losses <= FREE_LOSSES:
            return Restart()
        if failure["reason"] == Reason.AGENT_TERMINATED or failure.get("ownFault"):
            self._defer(failure, history)
        if not is_first:
            return Restart()
        wait = self._hold_back(losses - FREE_LOSSES + 1, LONGEST_NETWORK_WAIT_SECONDS, now)
        self._held_for_pods = self.not_before
        return Restart(wait=wait, why="%d attempts ended by lost pods without progress" % losses)

    def _forgive_lost_pod(self, ordinal: int, history: History) -> None:
        """Takes a lost pod back: the reason of its loss is known now, and makes the loss free."""
        if ordinal not in self._lost_pods:
            return
        self._lost_pods.remove(ordinal)
        if self._lost_pods:
            return
        del history.pod_losses[-1:]
        history.revision += 1
        if self.not_before == self._held_for_pods:
            self.not_before = 0.0

    # --- budget and back-off --------------------------------------------------------------------------------------

    def _defer(self, failure: Json, history: History) -> None:
        # A charge does not take the end away that a rule has decided on.
        if failure.get("action") == names.ACTION_FAIL or not _is_charged(failure, history):
            self.deferred = failure

    def _is_known(self, history: History) -> bool:
        """Returns whether it is known that the attempt made no progress.

        A script that shows no steps and no files may have worked for all the time that it lived.
        """
        return _shows_progress(history) or self._lived <= names.EARLY_SECONDS

    def _charge(self, failure: Json, history: History, now: Now, is_known: bool = True) -> Decision:
        """Takes a restart from the budget; the job fails if none is left.

        `is_known`: whether it is known that the attempt made no progress.
        """
        budget = self.budget(history)
        spent = self._within_window(sorted(history.spent), history, now)
        if len(spent) >= budget.max_restarts:
            why = "the budget of %d restarts within %.0f s is spent; the last failure: %s"
            text = why % (budget.max_restarts, budget.window, failure["message"])
            return Fail(Reason.RESTART_BUDGET_SPENT, text, failure)
        if is_known and history.without_progress >= budget.max_without_progress:
            return Fail(Reason.NO_PROGRESS, _no_progress(failure, history), failure)
        history.spent = [*spent, now.wall]
        history.restarts["counted"] += 1
        history.without_progress += int(is_known)
        history.revision += 1
        history.charged, self.deferred = failure["attempt"], None
        return Restart(counted=True)

    def _within_window(self, times: List[float], history: History, now: Now) -> List[float]:
        return [time for time in times if time > now.wall - self.budget(history).window]

    def _hold_back(self, tries: int, longest: float, now: Now) -> float:
        """Returns the seconds to wait: 0, 1, 2, 4, ... up to `longest`, by the number of `tries`."""
        wait = 0.0 if tries < 2 else min(longest, FIRST_WAIT_SECONDS * 2 ** min(tries - 2, 30))
        self.not_before = now.mono + wait
        return wait


def later_budget(one: RestartBudget, other: Optional[RestartBudget]) -> RestartBudget:
    """Returns the budget of the later generation of the job."""
    return one if other is None or other.generation < one.generation else other


def _failed_by_rule(failure: Json) -> Fail:
    text = "restart.rules[%s] fails the job: %s" % (failure.get("rule"), failure["message"])
    return Fail(Reason.RESTART_RULE, text, failure)


def _no_progress(failure: Json, history: History) -> str:
    """Returns what the job has reached, the last failure, and what to do."""
    reached = "no attempt has done a step"
    if history.furthest:
        reached = "no attempt got beyond step %d" % history.furthest
    saved = "no checkpoint was written"
    if history.checkpoint is not None:
        saved = "the newest checkpoint is of step %d" % number(history.checkpoint.get("step"))
    text = "%d restarts in a row made no progress: %s, and %s; the last failure: %s; fix it and "
    text += "create a new job, with a higher restart.maxRestartsWithoutProgress if such a row is to be expected"
    return text % (history.without_progress, reached, saved, failure["message"])


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
    """Forgives the losses if no attempt had done `step` before."""
    if step > history.furthest:
        history.furthest = int(step)
        _forgive(history)


def _is_container_kill(failure: Json) -> bool:
    """Returns whether the kernel killed a whole container for memory, and not a worker alone."""
    return failure["reason"] == Reason.OOM_KILLED and failure.get("exitCode") is None


def _is_charged(failure: Json, history: History) -> bool:
    """Returns whether a restart was charged already for the attempt that broke."""
    return bool(history.charged >= failure["attempt"])


def _is_same_loss(one: Optional[Json], other: Json) -> bool:
    return one is not None and (one["attempt"], one.get("ordinal")) == (other["attempt"], other.get("ordinal"))


def _shows_progress(history: History) -> bool:
    """Returns whether progress over earlier attempts would be seen.

    Counted steps begin at 0 in each attempt, so they show none.
    """
    return bool(history.furthest or history.saved) or history.checkpoint is not None


def _refill(history: History) -> None:
    history.spent = []
    _forgive(history)


def _forgive(history: History) -> None:
    if history.losses or history.pod_losses or history.without_progress:
        history.losses, history.pod_losses, history.without_progress = [], [], 0
        history.revision += 1
