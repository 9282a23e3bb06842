"""Decides what a replica does about the Lease that elects the leader: no I/O, no clock, no globals.

The rules are those of client-go's leaderelection:

- A standby takes the lease over when the record has not changed for the record's duration, by the
  standby's own clock since it saw the last change. Clocks of two nodes are never compared.
- Every write carries the resourceVersion that was read. Of two replicas that write, one gets a
  conflict, reads again, and judges again.
- The leader counts from the start of its last successful renewal, so it steps down before any
  standby may take over: renew_seconds are shorter than lease_seconds.

`now` is the seconds of a clock that never jumps and that continues while the process or the machine
is stopped.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The durations of an election, in seconds."""

    lease_seconds: float = 10.0
    """A standby takes over when the lease has not been renewed for this long."""
    renew_seconds: float = 7.0
    """The leader steps down when it could not renew for this long."""
    retry_seconds: float = 2.0
    """Between two renewals of the leader, and between two tries of a standby."""

    @property
    def failed_renewal_seconds(self) -> float:
        """The leader's wait after a renewal that failed: several tries fit before it must step down."""
        return self.retry_seconds / 4

    @property
    def call_seconds(self) -> float:
        """The deadline of a call: a second one fits after a connection that hangs."""
        return self.renew_seconds / 2


@dataclass(frozen=True, kw_only=True)
class Record:
    """The fields of a Lease that the election reads. `version` is its resourceVersion."""

    holder: str
    """The identity of the leader, or "" after a release."""
    version: str
    seconds: float = 0.0
    """The duration that the holder wrote, or 0."""
    transitions: int = 0


class Do(enum.Enum):
    """The next action of a replica."""

    READ = "read"
    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"
    STEP_DOWN = "step down"


@dataclass(frozen=True)
class Step:
    """An action. `seconds`: the deadline of a call, or how long to wait if nothing happens before."""

    do: Do
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Election:
    """The view of one replica. Every method returns the next view."""

    me: str
    timing: Timing
    record: Record | None = None
    """The lease as it was last read; None: there is none."""
    known: bool = False
    """Whether `record` may be written on. False at the start and after a conflict."""
    changed: float = 0.0
    """When the record last changed."""
    renewed: float | None = None
    """The start of the last renewal that succeeded; None: this replica does not lead."""
    retry: float | None = None
    """No call before this time, because one has failed."""

    @property
    def leads(self) -> bool:
        """Whether this replica holds the lease as far as it knows. `left` returns whether it may still write."""
        return self.renewed is not None

    def left(self, now: float) -> float:
        """Returns for how many seconds this replica may still write without another renewal; 0: not at all."""
        if self.renewed is None or now < self.renewed:
            return 0.0
        return max(0.0, self.renewed + self.timing.renew_seconds - now)

    def step(self, now: float) -> Step:
        """Returns the next action."""
        if self.renewed is not None:
            return self._step_of_leader(self.renewed, now)
        if self.retry is not None and now < self.retry:
            return Step(Do.WAIT, self.retry - now)
        if not self.known:
            return Step(Do.READ, self.timing.call_seconds)
        if self.record is None:
            return Step(Do.CREATE, self.timing.call_seconds)
        # The record bears this replica's name if the answer to its write was lost.
        expires = self.changed + (self.record.seconds or self.timing.lease_seconds)
        if self.record.holder in ("", self.me) or now >= expires:
            return Step(Do.TAKE, self.timing.call_seconds)
        return Step(Do.WAIT, expires - now)

    def _step_of_leader(self, renewed: float, now: float) -> Step:
        left = self.left(now)
        if left <= 0:
            return Step(Do.STEP_DOWN, 0.0)
        due = renewed + self.timing.retry_seconds if self.retry is None else self.retry
        if now < due:
            return Step(Do.WAIT, min(due - now, left))
        return Step(Do.RENEW if self.known else Do.READ, min(left, self.timing.call_seconds))

    def observed(self, record: Record | None, now: float) -> Election:
        """Returns the view after the lease was read, or a watch has reported it."""
        same = record == self.record and (self.known or self.record is not None)
        mine = self.renewed is not None and record is not None and record.holder == self.me
        return replace(
            self,
            record=record,
            known=True,
            changed=self.changed if same else now,
            renewed=self.renewed if mine else None,
            retry=self.retry if mine else None,
        )

    def written(self, record: Record, started: float) -> Election:
        """Returns the view after the write that began at `started` has made or kept this replica the leader."""
        return replace(self, record=record, known=True, changed=started, renewed=started, retry=None)

    def conflicted(self) -> Election:
        """Returns the view after somebody else wrote first: the lease must be read again."""
        return replace(self, known=False, retry=None)

    def failed(self, now: float) -> Election:
        """Returns the view after a call without an answer, which may have been carried out nevertheless."""
        wait = self.timing.failed_renewal_seconds if self.leads else self.timing.retry_seconds
        return replace(self, retry=now + wait)

    def stepped_down(self) -> Election:
        """Returns the view of a replica that stopped leading, and has to read the lease before anything else."""
        return replace(self, known=False, renewed=None, retry=None)
