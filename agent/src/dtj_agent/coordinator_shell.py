"""The shell around the coordinator: carries out its effects on the members' links, and passes on their messages."""

from __future__ import annotations

import time
import traceback
from collections import deque
from typing import Callable, Deque, Dict, List, Optional

from dtj_agent.errors import WireError
from dtj_agent.files import lease_file
from dtj_agent.files.unreported_saves import SavesWatch
from dtj_agent.group import effects
from dtj_agent.group.coordinator import Coordinator
from dtj_agent.group.messages import Message, Now
from dtj_agent.net.encoding import SharedEncoder
from dtj_agent.net.link import Link
from dtj_agent.net.loop import Loop
from dtj_contract.operator_message import OperatorMessage


class CoordinatorShell:
    """`checkpoint_dir`: the folder of the lease and of the checkpoints, None if there is no volume."""

    def __init__(
        self, loop: Loop, coordinator: Coordinator, checkpoint_dir: Optional[str], log: Callable[[str], None]
    ) -> None:
        self.coordinator = coordinator
        self.on_step_down: Callable[[effects.StepDown], None] = lambda effect: None
        self.on_changed: Callable[[], None] = lambda: None
        self._is_dropped = False
        self._loop = loop
        self._checkpoint_dir = checkpoint_dir
        self._log = log
        self._links: Dict[int, Link] = {}  # of members, by number
        self._effects: Deque[effects.Effect] = deque()  # not carried out yet
        self._busy = False
        self._encoder = SharedEncoder()
        self._saves: Optional[SavesWatch] = None
        if checkpoint_dir:
            self._saves = SavesWatch(loop, checkpoint_dir, self._on_saved)

    def join(self, link: Link, hello: Message) -> None:
        """Adds a member that dialled and sent its hello."""
        self._links[link.number] = link

        def received(message: Message) -> None:
            self._receive(link, lambda: self.coordinator.received(link.number, message, self._now()))

        def closed(reason: str, silence: float) -> None:
            del self._links[link.number]
            self._do(self.coordinator.left(link.number, silence, self._now()))

        link.on_message, link.on_close = received, closed
        self._receive(link, lambda: self.coordinator.joined(link.number, hello, self._now()))

    def _receive(self, link: Link, event: Callable[[], List[effects.Effect]]) -> None:
        """Passes on what a member sent; closes its link if that can't be handled.

        Otherwise one malformed message, which the member repeats after each restart, would end this
        agent again and again.
        """
        try:
            new = event()
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError):
            self._log("a message of a member can't be handled: %s" % traceback.format_exc(limit=-3))
            link.close("a message that can't be handled")
            return
        self._do(new)

    def drop(self, farewell: Message) -> None:
        """Ends this coordinator; `farewell` names the next one to the members, if it is known."""
        self._is_dropped = True
        self._effects.clear()
        for link in list(self._links.values()):
            link.send(farewell)
            link.close_when_written()

    def on_tick(self) -> None:
        """Sends the heartbeats, lets the coordinator check its deadlines, and looks for saves that nobody reports."""
        live = {"type": "beat", "live": self.coordinator.history.live(), "epoch": self.coordinator.epoch.number}
        for link in list(self._links.values()):
            self._send(link, live)
        self._do(self.coordinator.tick(self._now()))
        if self._saves is not None and self.coordinator.goodput.is_silent:
            self._saves.look()

    def heard_of(self, attempt: int) -> None:
        """Reports that a member of another coordinator knows of `attempt`."""
        self._do(self.coordinator.heard_of(attempt, self._now()))

    def handed_over(self, message: OperatorMessage) -> None:
        """Reports what the operator knows about the job."""
        self._do(self.coordinator.handed_over(message, self._now()))

    def leased(self, attempt: int, taken: Optional[int], error: Optional[str]) -> None:
        """Reports the volume's answer to a lease request."""
        self._do(self.coordinator.lease_done(attempt, taken, error, self._now()))

    def _on_saved(self, newest: float) -> None:
        self.coordinator.goodput.file_saved(newest, self._now())

    def _do(self, new: List[effects.Effect]) -> None:
        """Carries out effects in order.

        An effect may cause others (sending finds a dead link, for example); those wait until all
        before them are done.
        """
        if self._is_dropped:
            return
        self._effects.extend(new)
        while self._effects and not self._busy:
            self._busy = True
            try:
                self._do_one(self._effects.popleft())
            finally:
                # Without this, an error would leave the group with nothing but heartbeats from now on.
                self._busy = False
        self.on_changed()

    def _do_one(self, effect: effects.Effect) -> None:
        if isinstance(effect, effects.Send):
            link = self._links.get(effect.conn)
            if link is not None:
                self._send(link, effect.message)
        elif isinstance(effect, effects.Close):
            link = self._links.get(effect.conn)
            if link is not None:
                link.close("closed by the coordinator")
        elif isinstance(effect, effects.WriteLease):
            lease_file.write_lease(self._loop, self._checkpoint_dir, effect.attempt, self.leased)
        elif isinstance(effect, effects.StepDown):
            self.on_step_down(effect)
        else:
            self._log(effect.text)

    def _send(self, link: Link, message: Message) -> None:
        try:
            link.send_encoded(self._encoder.encode(message))
        except WireError as error:
            # The message is at fault, not the link whose message is being answered.
            self._log("%s can't be sent: %s" % (message["type"], error))
            link.close(str(error))

    def _now(self) -> Now:
        return Now(self._loop.clock(), time.time())
