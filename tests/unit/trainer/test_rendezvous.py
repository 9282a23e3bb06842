"""Ranks that were started differently, or not at all, are named when the group opens and not when torch times out."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from torch._C._distributed_c10d import Store, TCPStore

from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.rendezvous import (
    RankInfo,
    RendezvousResult,
    check_arrivals,
    error_for,
    format_ranks,
    join_store,
)
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.errors import ConfigError, RankMismatch, RendezvousFailed
from tests.lib.ports import free_port
from tests.unit.trainer import ranks_rendezvous
from tests.unit.trainer.ranks import finished, ranks
from tests.unit.trainer.ranks_rendezvous import frozen, start


def rank_info(rank: int, world_size: int = 3, pid: int = 7) -> RankInfo:
    return RankInfo(rank=rank, world_size=world_size, host="web", pid=pid)


WORLD = "write the number of all workers, the same for each"
TWICE = "write for each one of its own (or was one restarted alone? then restart all)"


@pytest.mark.parametrize(
    ("infos", "result"),
    [
        ([rank_info(0), rank_info(2), rank_info(1)], RendezvousResult(world_size=3, read=3)),
        ([rank_info(0), rank_info(2)], RendezvousResult(world_size=3, read=2, missing="rank 1 of 3 away")),
        ([], RendezvousResult(world_size=3, read=0, missing="ranks 0-2 of 3 away")),
        (
            [rank_info(0), rank_info(1, 4), rank_info(2)],
            RendezvousResult(
                world_size=3,
                read=2,
                different=f"rank 1 (pid 7 on web) has WORLD_SIZE=4, rank 0 has WORLD_SIZE=3: {WORLD}",
            ),
        ),
        (  # beyond rank 0's world
            [rank_info(3, 4), rank_info(0)],
            RendezvousResult(
                world_size=3,
                read=1,
                different=f"rank 3 (pid 7 on web) has WORLD_SIZE=4, rank 0 has WORLD_SIZE=3: {WORLD}",
            ),
        ),
        (
            [rank_info(1), rank_info(1, pid=8), rank_info(0)],
            RendezvousResult(
                world_size=3, read=2, different=f"two workers have RANK=1, pid 7 on web and pid 8 on web: {TWICE}"
            ),
        ),
    ],
)
def test_rank_0_names_the_first_rank_that_does_not_fit_or_is_missing(
    infos: list[RankInfo], result: RendezvousResult
) -> None:
    assert check_arrivals(infos, 3, "away") == result


@pytest.mark.parametrize(
    ("result", "ticket", "error", "message"),
    [
        (RendezvousResult(world_size=3, read=3), 3, None, ""),
        (
            RendezvousResult(world_size=2, read=2),
            3,
            RankMismatch,
            "rank 1 (pid 7 on web) has WORLD_SIZE=3, rank 0 has WORLD_SIZE=2",
        ),
        (
            RendezvousResult(world_size=3, read=3),
            4,
            RankMismatch,
            "all 3 ranks have joined already, another worker has RANK=1",
        ),
        (RendezvousResult(world_size=3, read=2, different="x"), 1, RankMismatch, "ranks were started differently: x"),
        (RendezvousResult(world_size=3, read=2, missing="x"), 1, RendezvousFailed, "x"),
    ],
)
def test_worker_raises_what_the_rendezvous_result_calls_for(
    result: RendezvousResult, ticket: int, error: type[Exception] | None, message: str
) -> None:
    raised = error_for(result, rank_info(1), ticket)
    assert (type(raised) if raised else None) == error
    assert message in str(raised or "")


@pytest.mark.parametrize(
    ("absent", "text"),
    [
        ([2], "rank 2"),
        ([0, 1], "ranks 0-1"),
        ([0, 8, 9, 10], "ranks 0, 8-10"),
        ([*range(0, 24, 2), 23], "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18 and 3 more"),
    ],
)
def test_missing_ranks_are_listed_as_ranges(absent: list[int], text: str) -> None:
    assert format_ranks(absent) == text


# --- real ranks under bare variables ---------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {2: {"WORLD_SIZE": "4"}},
            r"rank 2 \(pid \d+ on \S+\) has WORLD_SIZE=4, rank 0 has WORLD_SIZE=3: write the number",
        ),
        (
            {0: {"WORLD_SIZE": "4"}},
            r"rank [12] \(pid \d+ on \S+\) has WORLD_SIZE=3, rank 0 has WORLD_SIZE=4: write the number",
        ),
        ({2: {"RANK": "1"}}, r"two workers have RANK=1, pid \d+ on \S+ and pid \d+ on \S+: write for each"),
        ({2: {"RANK": "0"}}, r"two workers have RANK=0, pid \d+ on \S+ and pid \d+ on \S+: write for each"),
    ],
)
def test_ranks_started_differently_are_named_on_every_rank_without_restart(
    tmp_path: Path, changes: dict[int, dict[str, str]], message: str
) -> None:
    with ranks(3, start, tmp_path, changes) as group:
        assert group.wait() == [93] * 3, group.everything()
        for rank in range(3):
            lines = [line for line in group.output(rank).splitlines() if line.startswith("RankMismatch: ")]
            assert len(lines) == 1, group.everything()
            assert re.search("ranks were started differently: " + message, lines[0])


@pytest.mark.torch
def test_frozen_host_of_rank_0_times_out_at_the_deadlines(tmp_path: Path) -> None:
    with ranks(2, frozen, tmp_path) as group:
        group.wait_until(lambda: group.processes[1].exitcode is not None)
        assert group.processes[0].is_alive()
        assert group.processes[1].exitcode == 1, group.everything()
        assert re.search(
            r"RendezvousFailed: rank 0's store at \S+ accepted pid \d+ on \S+ and has not answered", group.output(1)
        )


@pytest.mark.torch
def test_missing_rank_is_named_on_all_others_at_the_deadline(tmp_path: Path) -> None:
    """The exit code is 1, because a restart may cure it."""
    with ranks(2, start, tmp_path, {}, 1, 10.0, WORLD_SIZE="3") as group:
        assert group.wait() == [1, 1], group.everything()
        for rank in range(2):
            assert "RendezvousFailed: rank 2 of 3 did not join at 127.0.0.1:" in group.output(rank)
            assert "within 10 s: see its log, or write a longer collective_timeout_seconds" in group.output(rank)


@pytest.mark.torch
@pytest.mark.parametrize(("rank", "port"), [(1, "closed"), (1, "silent"), (0, "silent")])
def test_address_without_a_store_is_named_with_the_seconds_of_trying(tmp_path: Path, rank: int, port: str) -> None:
    with socket.socket() as silent:  # accepts, and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        there = silent.getsockname()[1] if port == "silent" else free_port()
        changes = {0: {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": str(there)}}
        with ranks(1, start, tmp_path, changes, 1, 1.0) as group:
            assert group.wait() == [1], group.everything()
            output = group.output()
    if rank == 0:
        assert f"RendezvousFailed: rank 0 can't listen at 127.0.0.1:{there}: another program has the port" in output
    else:
        assert f"RendezvousFailed: rank 1 could not reach rank 0's store at 127.0.0.1:{there} for 1 s" in output


@pytest.mark.torch
def test_death_of_rank_0_during_the_rendezvous_is_reported_at_once(tmp_path: Path) -> None:
    port = free_port()
    with ranks(2, start, tmp_path, {}, WORLD_SIZE="3", MASTER_PORT=str(port)) as group:
        store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        store.wait(["dtj/1/1/word/2"], timedelta(seconds=250))
        group.processes[0].kill()
        assert group.wait() == [-signal.SIGKILL, 1], group.everything()
        assert f"rank 0's store at 127.0.0.1:{port} was closed before all ranks had joined" in group.output(1)


@pytest.mark.torch
def test_group_opens_again_in_the_same_processes(tmp_path: Path) -> None:
    assert "5 times all here" in finished(3, start, tmp_path, {}, 5)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "MASTER_ADDR: not set"),
        ({"MASTER_ADDR": "a"}, "MASTER_PORT: not set"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "x"}, "'x'"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "99999"}, "'99999': write a port, 1 to 65535"),
    ],
)
def test_missing_or_wrong_address_of_rank_0_is_rejected(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        Group.open(WorkerEnv(world_size=2, launched=True))


# --- torchrun, whose store outlives the attempts ---------------------------------------------------------------------


class Attempts:
    """Workers as threads, each with a connection of its own to one store that outlives them."""

    def __init__(self, pool: ThreadPoolExecutor, *, outlives: bool) -> None:
        self._server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._pool = pool
        self._outlives = outlives

    def store(self) -> Store:
        return TCPStore("127.0.0.1", self._server.port, is_master=False, wait_for_workers=False)

    def start(self, rank: int, world_size: int, seconds: float = 20.0) -> Future[Store]:
        timeout = timedelta(seconds=seconds)
        return self._pool.submit(
            join_store, self.store(), rank_info(rank, world_size), timeout, where="here", outlives=self._outlives
        )

    def until(self, key: str) -> None:
        self._server.wait([key], timedelta(seconds=250))


def dead_after_opening(attempts: Attempts) -> int:
    """Leaves the store as a rank 0 does that has opened its round and died."""
    store = attempts.store()
    store.add("calls", 1)
    store.set("1/open", "1")
    return 1


def dead_before_opening(attempts: Attempts) -> int:
    attempts.store().add("calls", 1)
    return 0


def whole(attempts: Attempts) -> int:
    """Leaves the store as a complete group does."""
    for started in [attempts.start(rank, 2) for rank in range(2)]:
        started.result()
    return 3


def without_rank_1(attempts: Attempts) -> int:
    with pytest.raises(RendezvousFailed, match=r"rank 1 of 2 did not join at here within 0\.1 s"):
        attempts.start(0, 2, 0.1).result()
    return 2


@pytest.mark.torch
@pytest.mark.parametrize("earlier", [dead_before_opening, dead_after_opening, whole, without_rank_1])
def test_attempt_joins_whatever_the_previous_one_left_in_the_store(earlier: Callable[[Attempts], int]) -> None:
    with ThreadPoolExecutor(4) as pool:
        attempts = Attempts(pool, outlives=True)
        ticket = earlier(attempts)
        early = attempts.start(1, 2)
        if ticket:
            attempts.until(f"1/word/{ticket}")  # it has registered with a rank 0 that is gone
        first = attempts.start(0, 2)
        early.result().set("address", "new")
        assert first.result().get("address") == b"new", "both continue in the same round"


@pytest.mark.torch
def test_surplus_worker_that_comes_late_ends_alone() -> None:
    with ThreadPoolExecutor(3) as pool:
        attempts = Attempts(pool, outlives=False)
        whole(attempts)
        for rank in range(2):
            with pytest.raises(RankMismatch, match=f"all 2 ranks have joined already, another worker has RANK={rank}"):
                attempts.start(rank, 2).result()


@pytest.mark.torch
def test_torchrun_restarts_a_group_in_its_one_store(tmp_path: Path) -> None:
    command = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "--max-restarts=2",
        "--monitor-interval=0.1",
    ]
    done = subprocess.run(
        [sys.executable, *command, ranks_rendezvous.__file__, "1"],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("2 times all here") == 4
