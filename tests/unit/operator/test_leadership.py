"""Replicas of the operator that elect a leader, on a loop with a virtual clock: every duration is exact."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from dtj_operator import errors
from dtj_operator.leader.claims import Claims
from dtj_operator.leader.election import Timing
from dtj_operator.leader.leadership import Alone, Leader, Leadership
from dtj_operator.leader.terms import Terms
from tests.lib import virtual_time
from tests.unit.operator.fake_leases import FakeLeaseClient, LeaseServer

LEASE = ("home", "dtj-operator")
TICK = 0.05


class Replica:
    """One operator process. Its clock can be ahead of the others'."""

    def __init__(self, server: LeaseServer, name: str, permit: Claims | None = None) -> None:
        self.client = FakeLeaseClient(server)
        self.ahead = 0.0
        self.leadership = Leadership(
            self.client,  # type: ignore[arg-type]
            *LEASE,
            name,
            Timing(),
            permit,
            now=lambda: asyncio.get_running_loop().time() + self.ahead,
        )
        self.task: asyncio.Task[None] | None = None

    def start(self) -> Replica:
        self.task = asyncio.ensure_future(self.leadership.run())
        return self

    @property
    def may_write(self) -> bool:
        try:
            self.leadership.fence()
        except errors.NotLeader:
            return False
        return self.leadership.leads

    async def kill(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])

    async def terminate(self) -> None:
        await self.kill()
        await self.leadership.release()


def virtually(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Runs a test on the virtual loop."""

    def run() -> None:
        virtual_time.run(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@contextlib.asynccontextmanager
async def pair() -> AsyncIterator[tuple[Replica, Replica]]:
    """Starts a leader and a standby."""
    server = LeaseServer()
    first, second = Replica(server, "a").start(), Replica(server, "b")
    await until(lambda: first.may_write)
    second.start()
    await until(lambda: second.leadership.settled)
    try:
        yield first, second
    finally:
        for replica in (first, second):
            await replica.kill()


async def until(condition: Callable[[], bool], limit: float = 60) -> float:
    """Waits for the condition. Returns the seconds that it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():
        assert loop.time() - began < limit
        await asyncio.sleep(TICK)
    return loop.time() - began


@virtually
async def test_one_of_two_replicas_leads_and_the_other_is_settled() -> None:
    async with pair() as (first, second):
        await asyncio.sleep(60)
        assert (first.may_write, second.may_write, second.leadership.settled) == (True, False, True)
        assert second.leadership.lost.is_set()


@virtually
async def test_standby_takes_over_ten_seconds_after_a_killed_leader_has_renewed() -> None:
    async with pair() as (first, second):
        await asyncio.sleep(31)
        await first.kill()
        assert await until(lambda: second.may_write) <= 10.1


@virtually
async def test_released_lease_is_taken_at_once() -> None:
    async with pair() as (first, second):
        await asyncio.sleep(31)
        await first.terminate()
        assert await until(lambda: second.may_write) <= 0.1


@virtually
async def test_lease_is_released_although_a_renewal_was_under_way() -> None:
    async with pair() as (first, second):
        await asyncio.sleep(1)
        first.client.loses_answers = True
        writes = len(second.client.server.writes)
        await until(lambda: len(second.client.server.writes) > writes)
        first.client.loses_answers = False
        await first.terminate()
        assert await until(lambda: second.may_write) <= 0.1


@virtually
async def test_leader_that_is_cut_off_stops_writing_before_the_standby_begins() -> None:
    async with pair() as (first, second):
        await asyncio.sleep(31)
        first.client.cut_off = True
        stopped = await until(lambda: not first.may_write)
        assert stopped <= 7.1
        assert not second.may_write
        began = await until(lambda: second.may_write)
        assert 2.5 <= began <= 5
        first.client.cut_off = False
        await asyncio.sleep(60)
        assert (first.may_write, second.may_write) == (False, True), "the old leader is the standby now"


@virtually
async def test_errors_of_the_api_server_for_five_seconds_change_no_leader() -> None:
    async with pair() as (first, second):
        for replica in (first, second):
            replica.client.fails = errors.Transient("no", status=503)
        for _ in range(100):
            assert first.may_write
            await asyncio.sleep(0.05)
        for replica in (first, second):
            replica.client.fails = None
        await asyncio.sleep(30)
        assert (first.may_write, second.may_write) == (True, False)


@virtually
async def test_leader_without_rivals_leads_again_after_an_outage() -> None:
    async with pair() as (first, second):
        await second.kill()
        first.client.fails = errors.Transient("no", status=503)
        await until(lambda: not first.may_write)
        await asyncio.sleep(300)
        first.client.fails = None
        assert await until(lambda: first.may_write) <= 2.2


@virtually
async def test_leader_whose_lease_was_stolen_stops_at_its_next_renewal() -> None:
    async with pair() as (first, _):
        lease = first.client.server.leases[LEASE]
        await first.client.server.store(lease | {"spec": lease["spec"] | {"holderIdentity": "thief"}})
        assert await until(lambda: not first.may_write) <= 2.2


@virtually
async def test_deleted_lease_is_created_again_by_exactly_one() -> None:
    async with pair() as (first, second):
        await first.client.server.remove(*LEASE)
        await asyncio.sleep(5)
        assert [first.may_write, second.may_write].count(True) == 1


@virtually
async def test_process_that_was_stopped_may_not_write_when_it_continues() -> None:
    """SIGSTOP and SIGCONT, or a machine that slept: the first thing that runs may be a write."""
    async with pair() as (first, _):
        first.ahead = 60.0
        assert not first.may_write
        with pytest.raises(errors.NotLeader):
            first.leadership.fence()


@virtually
async def test_two_replicas_never_may_write_at_the_same_time_whatever_fails() -> None:
    for seed in range(6):
        chance = random.Random(seed)
        server = LeaseServer()
        replicas = [Replica(server, name).start() for name in "abc"]
        leaders = set()
        for _ in range(600):
            replica = chance.choice(replicas)
            if chance.random() < 0.05:
                replica.client.cut_off = not replica.client.cut_off
            if chance.random() < 0.05:
                replica.client.loses_answers = not replica.client.loses_answers
            if chance.random() < 0.05:
                replica.client.fails = None if replica.client.fails else errors.Transient("no", status=500)
            if chance.random() < 0.01:
                await replica.kill()
                replicas[replicas.index(replica)] = Replica(server, f"{seed}.{chance.random()}").start()
            writers = [each for each in replicas if each.may_write]
            assert len(writers) <= 1, seed
            leaders |= set(writers)
            await asyncio.sleep(0.1)
        for replica in replicas:
            await replica.kill()
        assert leaders, seed


@virtually
async def test_cancellation_beside_a_change_of_the_lease_ends_the_election() -> None:
    """Python 3.11's asyncio.wait_for returned the change and lost the cancellation: SIGTERM was ignored."""
    server = LeaseServer()
    replica = Replica(server, "a").start()
    await until(lambda: replica.may_write)
    assert replica.task is not None
    replica.leadership._woken.set()
    replica.task.cancel()
    _, running = await asyncio.wait([replica.task], timeout=60)
    assert not running


@virtually
async def test_callbacks_and_terms_follow_the_leadership() -> None:
    events: list[str] = []

    async def note(event: str) -> None:
        events.append(event)

    async with pair() as (first, second):
        second.leadership.on_start(lambda: events.append("start"))
        second.leadership.on_stop(lambda: events.append("stop"))
        terms = Terms(second.leadership, lambda: note("work begins"), lambda: note("work ends"))
        running = asyncio.ensure_future(terms.run())
        await asyncio.sleep(5)
        assert events == []
        await first.terminate()
        await second.leadership.wait_until_leader()
        await asyncio.sleep(1)
        assert events == ["start", "work begins"]
        second.client.cut_off = True
        await second.leadership.lost.wait()
        await asyncio.sleep(1)
        assert events[2:] == ["stop", "work ends"]
        running.cancel()
        await asyncio.wait([running])


@virtually
async def test_work_that_fails_ends_the_terms_with_its_error() -> None:
    async def fail() -> None:
        raise errors.NotServed("the CRD was deleted")

    leader: Leader = Alone()
    alone = asyncio.ensure_future(leader.run())
    with pytest.raises(errors.NotServed):
        await Terms(leader, fail, fail).run()
    alone.cancel()
    await asyncio.wait([alone])


def installation(server: LeaseServer, name: str, *served: str) -> tuple[Replica, list[int]]:
    """Returns the only replica of an installation with a lease of its own, and what it counted."""
    counted: list[int] = []
    client = FakeLeaseClient(server)
    loop = asyncio.get_running_loop()
    claims = Claims(
        client,  # type: ignore[arg-type]
        "kube-system",
        f"{name}/dtj-operator",
        served,
        counted.append,
        now=loop.time,
        wall=lambda: 1_790_000_000 + loop.time(),
    )
    replica = Replica(server, name, claims)
    replica.leadership._namespace = name
    replica.leadership._lease["metadata"]["namespace"] = name
    return replica, counted


async def both_hold_a_lease(*replicas: Replica) -> None:
    await until(lambda: all(replica.leadership._election.leads for replica in replicas))
    await asyncio.sleep(12)


OVERLAPS = [
    ("both serve everything", (), (), True),
    ("the later one serves a part", (), ("team",), True),
    ("the later one serves everything", ("team",), (), True),
    ("they share one namespace", ("a", "b"), ("b", "c"), True),
    ("they share none", ("a",), ("b",), False),
]


@pytest.mark.parametrize(("case", "one", "two", "overlap"), OVERLAPS, ids=[row[0] for row in OVERLAPS])
def test_later_of_two_installations_that_overlap_waits(
    case: str, one: tuple[str, ...], two: tuple[str, ...], overlap: bool
) -> None:
    async def main() -> None:
        server = LeaseServer()
        (first, counted_first), (second, counted) = installation(server, "x", *one), installation(server, "y", *two)
        first.start()
        await until(lambda: first.may_write)
        second.start()
        await both_hold_a_lease(first, second)
        assert (first.may_write, second.may_write) == (True, not overlap)
        assert (counted_first[-1], counted[-1]) == (int(overlap), int(overlap))
        await first.kill()
        assert await until(lambda: second.may_write, 200) <= 130
        await asyncio.sleep(6)
        assert counted[-1] == 0
        first.start()
        await both_hold_a_lease(first)
        assert (first.may_write, second.may_write) == (not overlap, True), "who comes back is the later one now"
        for replica in (first, second):
            await replica.kill()

    virtual_time.run(main())


@virtually
async def test_installation_acts_only_once_its_claim_was_looked_at() -> None:
    """The lease is held meanwhile, and no call that writes is sent."""
    server = LeaseServer()
    replica, _ = installation(server, "x")
    permit = replica.leadership._permit
    assert isinstance(permit, Claims)
    permit._client.cut_off = True  # type: ignore[attr-defined]
    replica.start()
    await until(lambda: replica.leadership._election.leads)
    await asyncio.sleep(1)
    assert not replica.leadership.leads
    with pytest.raises(errors.NotLeader):
        replica.leadership.fence()
    permit._client.cut_off = False  # type: ignore[attr-defined]
    await until(lambda: replica.may_write)
    await replica.kill()


@virtually
async def test_restart_of_the_older_installation_keeps_its_precedence() -> None:
    server = LeaseServer()
    (first, _), (second, _) = installation(server, "x"), installation(server, "y")
    first.start()
    await until(lambda: first.may_write)
    second.start()
    await both_hold_a_lease(first, second)
    await first.kill()
    await asyncio.sleep(60)
    first.start()
    await both_hold_a_lease(first)
    assert (first.may_write, second.may_write) == (True, False)
    for replica in (first, second):
        await replica.kill()


@pytest.mark.parametrize(
    ("error", "seconds"),
    [(errors.Forbidden("no", status=403), 0.5), (errors.Transient("no", status=500), 25.0)],
    ids=["no right", "errors"],
)
def test_installation_that_can_keep_no_claim_acts_nevertheless(error: errors.KubeError, seconds: float) -> None:
    async def main() -> None:
        server = LeaseServer()
        replica, _ = installation(server, "x")
        permit = replica.leadership._permit
        assert isinstance(permit, Claims)
        permit._client.fails = error  # type: ignore[attr-defined]
        replica.start()
        assert await until(lambda: replica.may_write) <= seconds
        await replica.kill()

    virtual_time.run(main())
