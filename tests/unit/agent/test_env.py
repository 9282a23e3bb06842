"""The agent's environment: every error names the variable and what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtj_agent.errors import SettingsError
from dtj_agent.group.group_spec import ElasticLimits
from dtj_agent.group.member import Spawn
from dtj_agent.settings import AgentSettings, parse
from dtj_agent.workers.worker_env import worker_environment
from dtj_contract import names


@pytest.fixture
def good(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "key").write_text("5e" * 32 + "\n")
    return {
        "DTJ_JOB": "digits",
        "DTJ_JOB_UID": "uid",
        "DTJ_REPLICAS": "3",
        "DTJ_ORDINAL": "1",
        "DTJ_PEERS": "digits-{}.digits:29400",
        "DTJ_POD_IP": "10.0.0.7",
        "DTJ_SECRET_FILE": str(tmp_path / "key"),
    }


def settings(environ: dict[str, str]) -> AgentSettings:
    return parse(environ, ["python3", "t.py"])


def test_unset_variables_get_the_defaults_of_the_contract(good: dict[str, str]) -> None:
    found = settings(good)
    assert (found.pod, found.listen, found.processes, found.grace, found.secret) == (
        "digits-1",
        ("0.0.0.0", 29400),
        1,
        25.0,
        b"5e" * 32,
    )
    assert (found.peer(0), found.peer_count, found.checkpoint_dir) == (("digits-0.digits", 29400), 3, None)


def test_peers_may_be_a_list_by_ordinal(good: dict[str, str]) -> None:
    found = settings({**good, "DTJ_PEERS": "127.0.0.1:1, [::1]:2,h:3,spare:4", "DTJ_LISTEN": "[::]:29400"})
    assert [found.peer(n) for n in range(4)] == [("127.0.0.1", 1), ("::1", 2), ("h", 3), ("spare", 4)]
    assert (found.listen, found.callable_peers(9)) == (("::", 29400), 4)


def test_stop_grace_is_half_a_second_by_default(good: dict[str, str]) -> None:
    assert settings(good).stop_grace == 0.5
    assert settings({**good, "DTJ_STOP_GRACE_SECONDS": "30.0"}).stop_grace == 30.0


def test_spares_and_elastic_limits_are_read(good: dict[str, str]) -> None:
    found = settings({**good, "DTJ_SPARES": "2", "DTJ_MIN_REPLICAS": "2", "DTJ_ELASTIC_WAIT_SECONDS": "3.5"})
    assert (found.spares, found.elastic, found.peer_count) == (2, ElasticLimits(2, 0, 3.5), 5)
    assert (found.most_peers, found.callable_peers(9)) == (names.MAX_PODS + 2, 9)
    most = settings({**good, "DTJ_MIN_REPLICAS": "2", "DTJ_MAX_REPLICAS": "8"})
    assert (most.elastic, most.most_peers) == (ElasticLimits(2, 8, 10.0), 8)
    plain = settings(good)
    assert (plain.spares, plain.elastic, plain.most_peers) == (0, None, 3)


WRONG = {
    "DTJ_JOB": ("", "DTJ_JOB is not set"),
    "DTJ_REPLICAS": ("0", "DTJ_REPLICAS: '0' must be a whole number of at least 1"),
    "DTJ_ORDINAL": ("one", "DTJ_ORDINAL: 'one' must be a whole number of at least 0"),
    "DTJ_PEERS": ("h:1,h:2", "DTJ_PEERS: 'h:1,h:2' lists 2 agents, but there are 3 replicas"),
    "DTJ_LISTEN": ("29400", "DTJ_LISTEN: '29400' is not host:port; write e.g."),
    "DTJ_POD_IP": ("", "DTJ_POD_IP is not set: set it to the address"),
    "DTJ_SECRET_FILE": ("/no/such", "DTJ_SECRET_FILE: can't read /no/such (No such file or directory)"),
    "DTJ_GRACE_SECONDS": ("nan", "DTJ_GRACE_SECONDS: 'nan' must be a number of seconds, 0 or more"),
    "DTJ_STOP_GRACE_SECONDS": ("-1", "DTJ_STOP_GRACE_SECONDS: '-1' must be a number of seconds, 0 or more"),
    "DTJ_MAX_RESTARTS": ("-1", "DTJ_MAX_RESTARTS: '-1' must be a whole number of at least 0"),
}


@pytest.mark.parametrize(("variable", "value", "message"), [(key, *rest) for key, rest in WRONG.items()], ids=WRONG)
def test_wrong_variable_is_named(good: dict[str, str], variable: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError) as error:
        settings({**good, variable: value})
    assert message in str(error.value)


def test_short_secret_is_rejected_without_being_shown(good: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "key").write_text("hunter2")
    with pytest.raises(SettingsError, match="at least 32 characters") as error:
        settings(good)
    assert "hunter2" not in str(error.value)


def test_missing_command_is_an_error(good: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="-- COMMAND"):
        parse(good, [])


RANKS = [((0, 0), "0"), ((0, 1), "1"), ((1, 0), "2"), ((2, 1), "5")]


@pytest.mark.parametrize(("place", "rank"), RANKS)
def test_rank_is_node_rank_times_processes_plus_local_rank(
    good: dict[str, str], place: tuple[int, int], rank: str
) -> None:
    found = settings({**good, "DTJ_PROCESSES_PER_POD": "2"})
    environment = worker_environment(
        found,
        {"PATH": "/bin", "DTJ_SECRET_FILE": "x"},
        Spawn(4, place[0], 3, "10.0.0.5", 20001),
        place[1],
        "s",
        "e",
        "t",
    )
    assert (environment["RANK"], environment["WORLD_SIZE"], environment["LOCAL_WORLD_SIZE"]) == (rank, "6", "2")
    assert (environment["TORCHELASTIC_RESTART_COUNT"], environment["DTJ_ATTEMPT"], environment["OMP_NUM_THREADS"]) == (
        "3",
        "4",
        "1",
    )
    assert "DTJ_SECRET_FILE" not in environment


def test_omp_num_threads_of_the_user_is_kept(good: dict[str, str]) -> None:
    found = settings({**good, "DTJ_PROCESSES_PER_POD": "2"})
    assert (
        worker_environment(found, {"OMP_NUM_THREADS": "8"}, Spawn(1, 0, 3, "a", 1), 0, "s", "e", "t")["OMP_NUM_THREADS"]
        == "8"
    )
    one = settings(good)
    assert "OMP_NUM_THREADS" not in worker_environment(one, {}, Spawn(1, 0, 3, "a", 1), 0, "s", "e", "t")
