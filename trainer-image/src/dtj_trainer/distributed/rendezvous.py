"""The rendezvous: before a group opens, every worker reports its rank and world, and rank 0 answers.

torch's own rendezvous waits until WORLD_SIZE workers have come, and then reports only that they
have not. Here a WORLD_SIZE that differs and a RANK that two workers have are found as soon as their
workers have come, a rank that never comes is found at the deadline, and every rank that is there
names it.

In the store, under `dtj/OPENING/ROUND`: OPENING counts the groups that a process has opened, ROUND
the rank 0s that have opened a rendezvous. There is a second round only in torchrun's store, which
outlives the attempts and has the keys of those before.

    calls      how many rank 0s have opened a round (beside the rounds)
    open       rank 0 has opened this round
    tickets    how many workers have registered
    word/N     RankInfo of the worker with ticket N
    verdict    rank 0's RendezvousResult
    readers    how many workers have read a result that ends the group
    ended      all have: rank 0 may exit
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial

import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from dtj_trainer.errors import ConfigError, RankMismatch, RendezvousFailed, TrainerError

MARGIN_SECONDS = 10.0
"""How much longer other ranks wait than rank 0 does, so that they learn which rank is missing."""
LINGER_SECONDS = 10.0
"""How long rank 0 waits for others to read the reason, and for late ones: its store ends with it."""
TWIN_SECONDS = 10.0
"""How long the program that holds rank 0's port may take to answer as a store."""
_HINT = "see its log, or write a longer collective_timeout_seconds"


# --- the decision: pure --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class RankInfo:
    """The rank and world that one worker was started with, and where it runs."""

    rank: int
    world_size: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RendezvousResult:
    """Rank 0's conclusion from the ranks' infos; with neither text all ranks are here."""

    world_size: int
    """WORLD_SIZE of rank 0."""
    read: int
    """How many infos rank 0 has read: tickets 1 to `read`."""
    different: str = ""
    missing: str = ""


def difference(info: RankInfo, seen: Mapping[int, RankInfo], world_size: int) -> str:
    """Returns why `info` does not fit the ranks `seen` and rank 0's world size; "" if it does."""
    if info.world_size != world_size:
        return (
            f"rank {info.rank} ({info}) has WORLD_SIZE={info.world_size}, rank 0 has WORLD_SIZE={world_size}: "
            "write the number of all workers, the same for each"
        )
    if info.rank in seen:
        return (
            f"two workers have RANK={info.rank}, {seen[info.rank]} and {info}: write for each one of its own "
            "(or was one restarted alone? then restart all)"
        )
    return ""


def check_arrivals(infos: Iterable[RankInfo], world_size: int, absent: str) -> RendezvousResult:
    """Returns rank 0's result, from the infos as they come until the deadline.

    Ends at the first info that does not fit, or when all ranks are here. `absent`: the end of the
    message for missing ranks.
    """
    seen: dict[int, RankInfo] = {}
    read = 0
    for info in infos:
        read += 1
        if text := difference(info, seen, world_size):
            return RendezvousResult(world_size=world_size, read=read, different=text)
        seen[info.rank] = info
        if len(seen) == world_size:
            return RendezvousResult(world_size=world_size, read=read)
    missing = [rank for rank in range(world_size) if rank not in seen]
    text = f"{format_ranks(missing)} of {world_size} {absent}"
    return RendezvousResult(world_size=world_size, read=read, missing=text)


def format_ranks(ranks: Iterable[int]) -> str:
    """Returns ascending ranks as short text: `rank 3`, `ranks 0, 8-15`."""
    runs = [[r for _, r in run] for _, run in itertools.groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])]
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    more = f" and {sum(map(len, runs[10:]))} more" if len(runs) > 10 else ""
    return f"rank{'s' if runs and (len(runs) > 1 or len(runs[0]) > 1) else ''} {', '.join(texts[:10])}{more}"


def error_for(result: RendezvousResult, mine: RankInfo, ticket: int) -> TrainerError | None:
    """Returns what the worker with `ticket` must raise for the result; None if it may continue."""
    if result.different:
        return RankMismatch(f"ranks were started differently: {result.different}")
    if result.missing:
        return RendezvousFailed(result.missing)
    if text := difference(mine, {}, result.world_size):
        return RankMismatch(f"ranks were started differently: {text}")
    if ticket > result.read:  # all ranks had joined before
        text = f"all {result.world_size} ranks have joined already, another worker has RANK={mine.rank}"
        return RankMismatch(f"ranks were started differently: {text}: write for each one of its own")
    return None


# --- the store -----------------------------------------------------------------------------------------

_openings = itertools.count(1)


def join(rank: int, world_size: int, timeout: timedelta) -> Store:
    """Returns a store for the group alone, when all ranks are here.

    MASTER_ADDR and MASTER_PORT are rank 0's address.

    Raises RankMismatch on every rank that is there if two were started differently,
    RendezvousFailed if a rank has not come within `timeout` or rank 0 can't be reached.
    """
    where = _master_address()
    mine = RankInfo(rank=rank, world_size=world_size, host=socket.gethostname(), pid=os.getpid())
    outlives = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = _connect(rank, where, timeout, served=outlives)
    store.set_timeout(timeout)
    own = PrefixStore(f"dtj/{next(_openings)}", store)
    # All that `join_store` waits for by itself, one after the other.
    most = 2 * timeout.total_seconds() + MARGIN_SECONDS + LINGER_SECONDS
    try:
        return _with_timeout(most, partial(join_store, own, mine, timeout, where=where, outlives=outlives))
    except FutureTimeoutError as e:
        message = f"rank 0's store at {where} accepted {mine} and has not answered for {most:g} s: {_HINT}"
        raise RendezvousFailed(message) from e
    except dist.DistNetworkError as e:
        message = f"rank 0's store at {where} was closed before all ranks had joined: see the log of rank 0"
        raise RendezvousFailed(message) from e


def join_store(store: Store, mine: RankInfo, timeout: timedelta, *, where: str, outlives: bool) -> Store:
    """Joins as `join` does, in a store that is there already.

    `outlives`: the store outlives the attempts, so that it may have the keys of earlier ones.
    """
    if mine.rank == 0:
        number = store.add("calls", 1)
        if outlives or number == 1:
            return _coordinate(store, number, mine, timeout, where)
        # Another worker is rank 0. That worker finds this one among the others.
    seconds = timeout.total_seconds()
    number = max(1, store.add("calls", 0)) if outlives else 1
    while True:
        round_store = _round_store(store, number)
        if not _wait_for_key(round_store, "open", seconds):
            raise RendezvousFailed(f"rank 0 did not join at {where} within {seconds:g} s: {_HINT}")
        ticket = _register(round_store, mine)
        # Rank 0's deadline began before this one's, so the margin is enough.
        if not _wait_for_key(round_store, "verdict", seconds + MARGIN_SECONDS):
            raise RendezvousFailed(f"rank 0 did not answer through the store at {where} within {seconds:g} s: {_HINT}")
        result = RendezvousResult(**json.loads(round_store.get("verdict")))
        if not (outlives and ticket > result.read):
            break
        number += 1  # that round was an earlier attempt's
    if error := error_for(result, mine, ticket):
        with contextlib.suppress(dist.DistNetworkError):  # rank 0 may have exited
            _acknowledge(round_store, result)
        raise error
    return round_store


def _coordinate(store: Store, number: int, mine: RankInfo, timeout: timedelta, where: str) -> Store:
    """Opens a round as rank 0 and answers for all."""
    round_store, until = _round_store(store, number), time.monotonic() + timeout.total_seconds()
    round_store.set("open", "1")
    # Workers that are early wait in the round before, whose rank 0 may have died in it.
    if number > 1:
        before = _round_store(store, number - 1)
        before.set("open", "1")
        before.compare_set("verdict", "", json.dumps(asdict(RendezvousResult(world_size=mine.world_size, read=0))))
    _register(round_store, mine)

    def arrivals() -> Iterable[RankInfo]:
        for ticket in itertools.count(1):
            if not _wait_for_key(round_store, f"word/{ticket}", until - time.monotonic()):
                return
            yield RankInfo(**json.loads(round_store.get(f"word/{ticket}")))

    absent = f"did not join at {where} within {timeout.total_seconds():g} s: {_HINT}"
    result = check_arrivals(arrivals(), mine.world_size, absent)
    round_store.set("verdict", json.dumps(asdict(result)))
    if error := error_for(result, mine, 0):
        _acknowledge(round_store, result)
        _wait_for_key(round_store, "ended", LINGER_SECONDS)
        raise error
    return round_store


def _round_store(store: Store, number: int) -> Store:
    return PrefixStore(str(number), store)


def _register(round_store: Store, mine: RankInfo) -> int:
    ticket: int = round_store.add("tickets", 1)
    round_store.set(f"word/{ticket}", json.dumps(asdict(mine)))
    return ticket


def _wait_for_key(round_store: Store, key: str, seconds: float) -> bool:
    """Returns whether `key` is there within `seconds`."""
    try:
        round_store.wait([key], timedelta(seconds=max(seconds, 0.001)))  # 0 means for ever
    except dist.DistStoreError:
        return False
    return True


def _acknowledge(round_store: Store, result: RendezvousResult) -> None:
    """Lets rank 0 exit, if this worker is the last one to read a result that ends the group."""
    here: int = round_store.add("tickets", 0)
    if round_store.add("readers", 1) >= (here if result.missing else max(here, result.world_size)):
        round_store.set("ended", "1")


# --- the address ---------------------------------------------------------------------------------------


def _master_address() -> str:
    """Returns `MASTER_ADDR:MASTER_PORT`."""
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise ConfigError(f"{name}: not set, and RANK is; write where the worker of rank 0 listens")
    port = os.environ["MASTER_PORT"]
    if not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(f"MASTER_PORT={port!r}: write a port, 1 to 65535")
    return f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"


def _connect(rank: int, where: str, timeout: timedelta, *, served: bool) -> Store:
    """Connects to torch's own store, without its wait for all workers.

    The store is that of torchrun's agent (`served`) or rank 0's.
    """
    seconds = timeout.total_seconds()
    try:
        return _open_store(rank, seconds)
    except (dist.DistNetworkError, FutureTimeoutError) as e:
        if rank == 0 and not served and "EADDRINUSE" in str(e):
            # If another worker with RANK=0 has the port, that worker is to find this one.
            with contextlib.suppress(dist.DistNetworkError, FutureTimeoutError):
                return _open_store(1, min(seconds, TWIN_SECONDS))
            raise RendezvousFailed(f"rank 0 can't listen at {where}: another program has the port") from e
        why = f" ({str(e).splitlines()[0]})" if str(e) else ""
        message = f"rank {rank} could not reach rank 0's store at {where} for {seconds:g} s{why}: {_HINT}"
        raise RendezvousFailed(message) from e


def _open_store(rank: int, seconds: float) -> Store:
    # world_size=-1: the store does not count workers. Its own timeout only ends the thread.
    url = f"env://?rank={rank}&world_size=-1"
    return _with_timeout(seconds, lambda: next(rendezvous(url, timeout=timedelta(seconds=seconds + MARGIN_SECONDS)))[0])


def _with_timeout(seconds: float, work: Callable[[], Store]) -> Store:
    """Runs `work` in a thread for at most `seconds`. Raises concurrent.futures.TimeoutError.

    torch waits without an end for an answer when the connection was accepted by a frozen host or
    another program.
    """
    box: Future[Store] = Future()

    def run() -> None:
        try:
            box.set_result(work())
        except Exception as e:  # noqa: BLE001 - raised by the caller's result()
            box.set_exception(e)

    threading.Thread(target=run, name="rendezvous", daemon=True).start()
    return box.result(seconds)
