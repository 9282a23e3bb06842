"""Forked ranks that wait for the coordinator of their engine, which rank 0 starts."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from dtj_agent import engines
from dtj_agent.engines import Address
from dtj_agent.warm import child
from dtj_agent.warm.rank_variables import RankVariables
from dtj_agent.warm_needs import WarmNeeds
from tests.unit.agent.test_engines import place


def test_rank_waits_until_the_coordinator_listens_and_no_longer_than_its_limit() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        begin = time.monotonic()
        child.wait_for_listener(f"127.0.0.1:{port}", 0.1)
        assert 0.1 <= time.monotonic() - begin < 5, "nobody listens"
        threading.Timer(0.1, probe.listen).start()
        child.wait_for_listener(f"127.0.0.1:{port}", 60)
        assert probe.accept()
    child.wait_for_listener("a-name-that-is-not-resolved.invalid:1", 60)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "job-0.job"])
def test_ranks_but_the_first_of_tensorflow_wait_for_worker_0(host: str) -> None:
    needs = engines.load("tensorflow").warm or WarmNeeds()
    members: tuple[Address, ...] = ((host, 20001), (host, 20011))
    own = engines.load("tensorflow").environment(place(members=members, local_rank=0), {}) | {"RANK": "1"}
    assert RankVariables(needs).coordinator(own) == engines.host_port(members[0])
    assert RankVariables(needs).coordinator({**own, "RANK": "0"}) == ""
    assert RankVariables(needs).coordinator({"RANK": "1"}) == ""


def test_ranks_but_the_first_of_jax_wait_for_its_address() -> None:
    own = {"JAX_COORDINATOR_ADDRESS": "[::1]:1", "RANK": "1"}
    jax, torch = (RankVariables(engines.load(name).warm or WarmNeeds()) for name in ("jax", "torch"))
    assert (jax.coordinator(own), jax.coordinator({**own, "RANK": "0"}), torch.coordinator(own)) == ("[::1]:1", "", "")
