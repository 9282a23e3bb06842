"""Workers that the warm process has forked ahead of the next attempt.

A fork copies the page tables of all imports, 8 ms each, and a forked process copies each page that it
writes to: both are done while the attempt before trains, and so are the imports that each rank has to do
itself (rank_imports.py). A standby waits on a socket of its own for what makes it a rank; the end of that
socket ends it. A process between holds the standbys until then, so that the agent, which kills orphans when
it stops an attempt, does not have them yet.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence, Union

from dtj_agent.warm import background, child, rank_imports, script
from dtj_agent.warm.child import Prepared
from dtj_agent.warm.import_report import NO_PACKAGE, ReportReader, ReportWriter, Verdict
from dtj_agent.warm.learned import Learned
from dtj_agent.warm.rank_variables import RankVariables

MAX_ORDER_BYTES = 256 * 1024


class Order(NamedTuple):
    """The message that makes a standby a rank, with its output and gate; `parent` is the process between."""

    text: bytes
    output: int
    gate: int
    parent: int
    prepared: Prepared


class _Standby:
    """One standby. `verdict`: of its own imports, once they have ended; it waits if that is not bad."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.reports = ReportReader(sock.fileno(), time.monotonic())
        self.verdict: Optional[Verdict] = None

    @property
    def waits(self) -> bool:
        return self.verdict is not None and not self.verdict.bad


class Standbys:
    """The standbys of one attempt, as the warm process sees them.

    `orders`: those of the attempt before, for whose variables the standbys import; none if they import nothing.
    """

    def __init__(
        self,
        pid: int,
        leash: socket.socket,
        sockets: Sequence[socket.socket],
        orders: Sequence[Mapping[str, Any]],
        variables: RankVariables,
    ) -> None:
        self._pid = pid
        self._leash = leash
        self._each = [_Standby(sock) for sock in sockets]
        self._orders = orders
        self._lasting = variables.lasting

    def fit(self, orders: Sequence[Mapping[str, Any]]) -> bool:
        """Returns whether these standbys can become the ranks of `orders`."""
        if len(orders) != len(self._each):
            return False
        return not self._orders or list(map(self._lasting, orders)) == list(map(self._lasting, self._orders))

    @property
    def unready(self) -> List[socket.socket]:
        """The sockets of the standbys that have not reported that they wait; readable when there is news."""
        return [each.socket for each in self._each if each.verdict is None]

    @property
    def until(self) -> float:
        """The deadline of the first import that runs."""
        return min(each.reports.until for each in self._each if each.verdict is None)

    def news(self, now: float) -> Optional[Verdict]:
        """Returns a verdict that is bad; that of all together, once, when the last one waits."""
        if not self.unready:
            return None
        for each in self._each:
            each.verdict = each.verdict or each.reports.news(now)
        # A standby that has ended without an import is forked when it is needed.
        known = [each.verdict for each in self._each if each.verdict and each.verdict.bad != NO_PACKAGE]
        bad = next((verdict for verdict in known if verdict.bad), None)
        if bad is not None or self.unready or not known:
            return bad
        return known[0]._replace(seconds=max(verdict.seconds for verdict in known))

    def start(self, texts: Sequence[bytes], descriptors: Sequence[int]) -> List[int]:
        """Makes each standby a rank; `descriptors` has the output and the gate of each rank.

        Returns the places of the ranks that must be forked instead: their standbys have ended, or have not reported
        that they wait.
        """
        self.news(time.monotonic())
        failed = []
        for place, each in enumerate(self._each):
            if not each.waits or not _send(each.socket, texts[place], descriptors[2 * place : 2 * place + 2]):
                failed.append(place)
        self._release()
        return failed

    def end(self) -> None:
        """Ends standbys that are not needed. Messages do it, because a fork may hold the sockets too."""
        for each in self._each:
            _send(each.socket, b"\0", ())
        self._release()

    def forget(self) -> None:
        """Closes what a fork of the warm process has inherited."""
        _close([self._leash, *[each.socket for each in self._each]])

    def are_held(self) -> bool:
        """Returns whether the process between still holds the standbys."""
        return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def _release(self) -> None:
        """Ends the process between, also if a signal has stopped it, so that its children fall to the agent.

        Standbys that still import end with it.
        """
        self.forget()
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def begin(
    orders: Sequence[Mapping[str, Any]],
    found: Optional[Learned],
    variables: RankVariables,
    close_inherited: Callable[[], None],
) -> Union[Standbys, Order]:
    """Forks a standby for each rank; returns an Order in each of them, once it is a rank.

    `orders`: those of the last attempt. `found`: what each imports ahead; None if there is nothing, or no memory for
    it. `close_inherited` closes, in each fork, what is the warm process's. Raises OSError if the process between can't
    be forked.
    """
    leash, end_of_leash = socket.socketpair()
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in orders]
    ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        pid = os.fork()
    except OSError:
        _close([leash, end_of_leash, *ours, *theirs])
        raise
    if pid:
        _close([end_of_leash, *theirs])
        return Standbys(pid, leash, ours, orders if found is not None else (), variables)
    try:
        close_inherited()
        _close([leash, *ours])
        return _be_forked(end_of_leash, theirs, orders, found, variables)
    except BaseException:  # noqa: BLE001 (whatever it is, this process must not serve as the warm process)
        traceback.print_exc()
    os._exit(1)


def _be_forked(
    end_of_leash: socket.socket,
    theirs: Sequence[socket.socket],
    orders: Sequence[Mapping[str, Any]],
    found: Optional[Learned],
    variables: RankVariables,
) -> Order:
    """Forks the standbys. Returns in each of them, once it is a rank, and nowhere else."""
    parent = os.getpid()
    for place, sock in enumerate(theirs):
        try:
            forked = os.fork()
        except OSError:
            break  # this rank will be forked when it is needed, or started plainly
        if forked == 0:
            _close([end_of_leash, *theirs[:place], *theirs[place + 1 :]])
            return _wait(sock, place, parent, orders[place], found, variables)
    _close(theirs)
    end_of_leash.recv(1)  # ends with the warm process
    os._exit(0)


def _wait(
    sock: socket.socket,
    place: int,
    parent: int,
    last: Mapping[str, Any],
    found: Optional[Learned],
    variables: RankVariables,
) -> Order:
    prepared, report, adjustment = child.prepare(place == 0), ReportWriter(sock.fileno()), ""
    if found is None:
        report.done(0, 0.0)
    else:
        child.end_with_parent(parent)
        adjustment = background.die_first()
        imported = rank_imports.import_for(last, found, variables, report)
        modules = frozenset(sys.modules) if place == 0 else prepared.modules
        prepared = prepared._replace(modules=modules, changes=imported.changes)
        child.outlive_parent()
        report.done(imported.modules, imported.seconds)
    try:
        text, descriptors, _, _ = socket.recv_fds(sock, MAX_ORDER_BYTES, 2)
    except OSError:  # the warm process has closed it before it has read the report
        os._exit(0)
    # A file beside the script that hides a module may be younger than its import: the ranks are started plainly then.
    if len(descriptors) != 2 or (found is not None and script.shadowed(last["command"])):
        os._exit(0)
    sock.close()
    background.die_as_before(adjustment)
    return Order(text, descriptors[0], descriptors[1], parent, prepared)


def _send(sock: socket.socket, text: bytes, descriptors: Sequence[int]) -> bool:
    """Sends a message to a standby. Returns False if that has ended."""
    try:
        socket.send_fds(sock, [text], descriptors)
    except OSError:
        return False
    return True


def _close(sockets: Sequence[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
