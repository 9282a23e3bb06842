"""The roll call: before a group opens, every worker says what it was started as, and rank 0 answers for all.

torch's own rendezvous waits until WORLD_SIZE workers have come, and then tells only that they have not. Here a WORLD_SIZE that
differs and a RANK that two workers have are found as soon as their workers have come, a rank that never comes is found at
the deadline, and every rank that is there names it.

In the store, under `dtj/OPENING/CALL`: OPENING counts the groups that a process has opened, CALL the rank 0s that have asked.
A second one asks only in torchrun's store, which outlives the attempts and has the keys of those before.

    open       rank 0 asks
    tickets    so many workers have answered
    word/N     what the worker with ticket N was started as
    result    what rank 0 makes of the words
    readers    so many have read a result that ends the group
    ended      all have: rank 0 may go
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
"""Others wait so much longer than rank 0 does, so that they hear who is missing."""
LINGER_SECONDS = 10.0
"""Rank 0's store ends with its process: so long it waits for the others to read why, and for one that comes a little later."""
TWIN_SECONDS = 10.0
"""For who holds rank 0's port to answer as a store."""
_LOOK = "see its log, or write a longer collective_timeout_seconds"


# --- what the words mean: pure -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class RankInfo:
    """What one worker was started as, and where."""

    rank: int
    world_size: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RendezvousResult:
    """What rank 0 makes of the words; with neither text all are here."""

    world_size: int
    """Rank 0's."""
    read: int
    """So many words it is made of: tickets 1 to `read`."""
    different: str = ""
    missing: str = ""


def difference(word: RankInfo, seen: Mapping[int, RankInfo], world_size: int) -> str:
    """Why `word` does not fit the words of the ranks `seen` and rank 0's world size; "" if it does."""
    if word.world_size != world_size:
        return (
            f"rank {word.rank} ({word}) has WORLD_SIZE={word.world_size}, rank 0 has WORLD_SIZE={world_size}: "
            "write the number of all workers, the same for each"
        )
    if word.rank in seen:
        return (
            f"two workers have RANK={word.rank}, {seen[word.rank]} and {word}: write for each one of its own "
            "(or was one restarted alone? then restart all)"
        )
    return ""


def check_arrivals(infos: Iterable[RankInfo], world_size: int, absent: str) -> RendezvousResult:
    """Of rank 0, from the words as they come until the deadline: ends at the first that does not fit, or when all are here.

    `absent` is what is said of the ranks that no word was heard of.
    """
    seen: dict[int, RankInfo] = {}
    read = 0
    for word in infos:
        read += 1
        if text := difference(word, seen, world_size):
            return RendezvousResult(world_size=world_size, read=read, different=text)
        seen[word.rank] = word
        if len(seen) == world_size:
            return RendezvousResult(world_size=world_size, read=read)
    away = [rank for rank in range(world_size) if rank not in seen]
    return RendezvousResult(world_size=world_size, read=read, missing=f"{format_ranks(away)} of {world_size} {absent}")


def format_ranks(ranks: Iterable[int]) -> str:
    """Ascending ranks in few infos: `rank 3`, `ranks 0, 8-15`."""
    runs = [[r for _, r in run] for _, run in itertools.groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])]
    said = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    more = f" and {sum(map(len, runs[10:]))} more" if len(runs) > 10 else ""
    return f"rank{'s' if runs and (len(runs) > 1 or len(runs[0]) > 1) else ''} {', '.join(said[:10])}{more}"


def error_for(result: RendezvousResult, mine: RankInfo, ticket: int) -> TrainerError | None:
    """What the worker with `ticket` must raise at the result; None if it may go on."""
    if result.different:
        return RankMismatch(f"ranks were started differently: {result.different}")
    if result.missing:
        return RendezvousFailed(result.missing)
    if text := difference(mine, {}, result.world_size):
        return RankMismatch(f"ranks were started differently: {text}")
    if ticket > result.read:  # all were here when it came
        text = f"all {result.world_size} ranks are here already, another worker has RANK={mine.rank}"
        return RankMismatch(f"ranks were started differently: {text}: write for each one of its own")
    return None


# --- the store -----------------------------------------------------------------------------------------------------------

_openings = itertools.count(1)


def join(rank: int, world_size: int, timeout: timedelta) -> Store:
    """A store of its own for the group, when all ranks are here. MASTER_ADDR and MASTER_PORT say where rank 0 is.

    Raises RankMismatch on every rank that is there if two were started differently, RendezvousFailed if one has not come
    within `timeout` or rank 0 can't be reached.
    """
    where = _master_address()
    mine = RankInfo(rank=rank, world_size=world_size, host=socket.gethostname(), pid=os.getpid())
    outlives = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = _connect(rank, where, timeout, served=outlives)
    store.set_timeout(timeout)
    own = PrefixStore(f"dtj/{next(_openings)}", store)
    most = (
        2 * timeout.total_seconds() + MARGIN_SECONDS + LINGER_SECONDS
    )  # what `join_store` waits for by itself, one after the other
    try:
        return _with_timeout(most, partial(join_store, own, mine, timeout, where=where, outlives=outlives))
    except FutureTimeoutError as e:
        raise RendezvousFailed(f"rank 0's store at {where} took {mine} in and has not answered for {most:g} s: {_LOOK}") from e
    except dist.DistNetworkError as e:
        raise RendezvousFailed(f"rank 0's store at {where} went away before all ranks had met: see the log of rank 0") from e


def join_store(store: Store, mine: RankInfo, timeout: timedelta, *, where: str, outlives: bool) -> Store:
    """As `join`, in a store that is there. `outlives`: the attempts, so that it may have the keys of earlier ones."""
    if mine.rank == 0:
        call = store.add("calls", 1)
        if outlives or call == 1:
            return _coordinate(store, call, mine, timeout, where)
        # Another worker is rank 0: it finds us among the others.
    seconds = timeout.total_seconds()
    call = max(1, store.add("calls", 0)) if outlives else 1
    while True:
        round_store = _round_store(store, call)
        if not _wait_for_key(round_store, "open", seconds):
            raise RendezvousFailed(f"rank 0 did not come to the store at {where} within {seconds:g} s: {_LOOK}")
        ticket = _register(round_store, mine)
        if not _wait_for_key(round_store, "verdict", seconds + MARGIN_SECONDS):  # rank 0's time began before ours
            raise RendezvousFailed(f"rank 0 gave no answer through the store at {where} within {seconds:g} s: {_LOOK}")
        result = RendezvousResult(**json.loads(round_store.get("verdict")))
        if not (outlives and ticket > result.read):
            break
        call += 1  # that was the call of an attempt before ours
    if error := error_for(result, mine, ticket):
        with contextlib.suppress(dist.DistNetworkError):  # rank 0 has waited long enough
            _acknowledge(round_store, result)
        raise error
    return round_store


def _coordinate(store: Store, call: int, mine: RankInfo, timeout: timedelta, where: str) -> Store:
    """Rank 0's part."""
    round_store, until = _round_store(store, call), time.monotonic() + timeout.total_seconds()
    round_store.set("open", "1")
    if call > 1:  # who is early waits in the call before, whose rank 0 may have died in it
        before = _round_store(store, call - 1)
        before.set("open", "1")
        before.compare_set("verdict", "", json.dumps(asdict(RendezvousResult(world_size=mine.world_size, read=0))))
    _register(round_store, mine)

    def arrivals() -> Iterable[RankInfo]:
        for ticket in itertools.count(1):
            if not _wait_for_key(round_store, f"word/{ticket}", until - time.monotonic()):
                return
            yield RankInfo(**json.loads(round_store.get(f"word/{ticket}")))

    absent = f"did not come to {where} within {timeout.total_seconds():g} s: {_LOOK}"
    result = check_arrivals(arrivals(), mine.world_size, absent)
    round_store.set("verdict", json.dumps(asdict(result)))
    if error := error_for(result, mine, 0):
        _acknowledge(round_store, result)
        _wait_for_key(round_store, "ended", LINGER_SECONDS)
        raise error
    return round_store


def _round_store(store: Store, call: int) -> Store:
    return PrefixStore(str(call), store)


def _register(round_store: Store, mine: RankInfo) -> int:
    ticket: int = round_store.add("tickets", 1)
    round_store.set(f"word/{ticket}", json.dumps(asdict(mine)))
    return ticket


def _wait_for_key(round_store: Store, key: str, seconds: float) -> bool:
    """Whether `key` is there within `seconds`."""
    try:
        round_store.wait([key], timedelta(seconds=max(seconds, 0.001)))  # 0 would be for ever
    except dist.DistStoreError:
        return False
    return True


def _acknowledge(round_store: Store, result: RendezvousResult) -> None:
    """The last one to read a result that ends the group lets rank 0 go."""
    here: int = round_store.add("tickets", 0)
    if round_store.add("readers", 1) >= (here if result.missing else max(here, result.world_size)):
        round_store.set("ended", "1")


# --- where it is ---------------------------------------------------------------------------------------------------------


def _master_address() -> str:
    """`MASTER_ADDR:MASTER_PORT`."""
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise ConfigError(f"{name}: not set, and RANK is; write where the worker of rank 0 listens")
    port = os.environ["MASTER_PORT"]
    if not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(f"MASTER_PORT={port!r}: write a port, 1 to 65535")
    return f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"


def _connect(rank: int, where: str, timeout: timedelta, *, served: bool) -> Store:
    """torch's own store, that of torchrun's agent (`served`) or rank 0's, without its wait for WORLD_SIZE workers."""
    seconds = timeout.total_seconds()
    try:
        return _open_store(rank, seconds)
    except (dist.DistNetworkError, FutureTimeoutError) as e:
        if rank == 0 and not served and "EADDRINUSE" in str(e):
            # By another worker with RANK=0? Then it is to find us.
            with contextlib.suppress(dist.DistNetworkError, FutureTimeoutError):
                return _open_store(1, min(seconds, TWIN_SECONDS))
            raise RendezvousFailed(f"rank 0 can't listen at {where}: another program has the port") from e
        why = f" ({str(e).splitlines()[0]})" if str(e) else ""
        raise RendezvousFailed(f"rank {rank} could not reach rank 0's store at {where} for {seconds:g} s{why}: {_LOOK}") from e


def _open_store(rank: int, seconds: float) -> Store:
    # world_size=-1: of workers that nobody has counted. Its own timeout only ends the thread.
    url = f"env://?rank={rank}&world_size=-1"
    return _with_timeout(seconds, lambda: next(rendezvous(url, timeout=timedelta(seconds=seconds + MARGIN_SECONDS)))[0])


def _with_timeout(seconds: float, work: Callable[[], Store]) -> Store:
    """By a thread, because torch waits without an end for the answer of who has accepted a connection and is silent: a frozen
    host, another program. Raises concurrent.futures.TimeoutError."""
    box: Future[Store] = Future()

    def run() -> None:
        try:
            box.set_result(work())
        except Exception as e:  # noqa: BLE001 - raised where it is waited for
            box.set_exception(e)

    threading.Thread(target=run, name="rendezvous", daemon=True).start()
    return box.result(seconds)
