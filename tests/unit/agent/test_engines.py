"""Engines: the variables of every rank as tables, and real ranks that check what they were given."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any, get_args

import pytest

from dtj_agent import build, engines
from dtj_agent.engines import Place
from dtj_agent.errors import SettingsError
from dtj_agent.settings import parse
from dtj_agent.workers.gpu_files import count_gpus
from dtj_contract import names
from dtj_core.api.v1alpha1 import Spec

SIZE, PODS = 2, 3
MEMBERS = tuple((f"10.0.0.{node}", 21000 + 10 * node) for node in range(PODS))
TORCH = {
    "MASTER_ADDR": "10.0.0.0",
    "MASTER_PORT": "21000",
    "GROUP_RANK": "1",
    "NODE_RANK": "1",
    "GROUP_WORLD_SIZE": "3",
    "ROLE_RANK": "3",
    "ROLE_WORLD_SIZE": "6",
    "ROLE_NAME": "default",
    "TORCHELASTIC_RUN_ID": "uid",
    "TORCHELASTIC_RESTART_COUNT": "4",
    "TORCHELASTIC_MAX_RESTARTS": "10",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_ERROR_FILE": "/e.json",
}
TF_WORKERS = [f"10.0.0.{node}:{21000 + 10 * node + rank}" for node in range(PODS) for rank in range(SIZE)]
EXPECTED: dict[str, dict[str, str]] = {
    "torch": TORCH,
    "deepspeed": {**TORCH, "LOCAL_SIZE": "2", "CROSS_RANK": "1", "CROSS_SIZE": "3"},
    "horovod": {
        **TORCH,
        "HOROVOD_RANK": "3",
        "HOROVOD_SIZE": "6",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "1",
        "HOROVOD_CROSS_SIZE": "3",
        "HOROVOD_HOSTNAME": "node-1",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.0",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "21000",
    },
    "jax": {
        "JAX_COORDINATOR_ADDRESS": "10.0.0.0:21000",
        "JAX_COORDINATOR_BIND_ADDRESS": "10.0.0.0:21000",
        "JAX_NUM_PROCESSES": "6",
        "JAX_PROCESS_ID": "3",
        "OMPI_MCA_orte_hnp_uri": "0.0;tcp://10.0.0.0:21000",
        "OMPI_COMM_WORLD_SIZE": "6",
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    },
    "ray": {"RAY_ADDRESS": "10.0.0.0:21000", "DTJ_RAY_PRELOAD": ""},
    "tensorflow": {
        "TF_CONFIG": json.dumps({"cluster": {"worker": TF_WORKERS}, "task": {"type": "worker", "index": 3}}),
    },
}
"""Variables of rank 3: the second of the second pod, in attempt 5."""


def place(**changes: Any) -> Place:
    found = Place(
        attempt=5, rank=3, local_rank=1, local_size=SIZE, node_rank=1, nodes=PODS, master=MEMBERS[0], members=MEMBERS,
        run_id="uid", max_restarts=10, error_file="/e.json", gpus=0,
    )  # fmt: skip
    return found._replace(**changes)


@pytest.mark.parametrize("name", [name for name in EXPECTED if engines.load(name).warm])
def test_warm_process_knows_which_variables_differ(name: str) -> None:
    """Otherwise an import could keep the address of an attempt that is over."""
    engine = engines.load(name)
    assert engine.warm is not None
    members = tuple((f"10.0.1.{node}", 22000 + 10 * node) for node in range(PODS))
    later = place(attempt=6, master=members[0], members=members, error_file="/f.json")
    before, after = engine.environment(place(), {}), engine.environment(later, {})
    assert {name for name in before if before[name] != after[name]} == set(engine.warm.per_attempt)
    assert all(name.startswith(engine.warm.per_rank) for name in before)


def test_every_engine_of_the_api_is_a_file_of_the_agent_and_in_these_tables() -> None:
    assert sorted(get_args(Spec.model_fields["engine"].annotation)) == engines.available() == sorted(EXPECTED)
    assert Spec.model_fields["engine"].default == names.DEFAULT_ENGINE


@pytest.mark.parametrize("name", EXPECTED)
def test_variables_of_a_rank(name: str) -> None:
    assert engines.load(name).environment(place(), {}) == EXPECTED[name]


def test_ray_runs_the_command_beside_the_head_and_a_node_in_each_other_pod() -> None:
    ray = engines.load("ray")
    first = ray.command(place(node_rank=0, rank=0, local_rank=0), ["python3", "train.py"])
    other = ray.command(place(), ["python3", "train.py"])
    assert (first[:2], first[4:]) == (["python3", "-c"], ["head", "10.0.0.0", "21000", "python3", "train.py"])
    assert (other[:2], other[4:]) == (["python3", "-c"], ["node", "10.0.0.1", "10.0.0.0", "21000"])
    assert ray.command(place(), ["/opt/venv/bin/python", "train.py"])[0] == "/opt/venv/bin/python"
    assert ray.command(place(), ["./run.sh"])[0] == "python3"
    for program in (first[2], other[2]):
        compile(program, "ray", "exec")


def test_ray_node_gets_what_the_spec_states_about_imports_ahead() -> None:
    address, preload = {"RAY_ADDRESS": "10.0.0.0:21000"}, {"DTJ_PRELOAD": "a,b"}
    assert engines.load("ray").environment(place(), preload) == address | {"DTJ_RAY_PRELOAD": "a,b"}
    assert engines.load("ray").environment(place(), preload | {"DTJ_WARM_WORKERS": "Never"}) == address


def test_command_of_every_other_engine_is_that_of_the_job() -> None:
    found = {name: engines.load(name).command(place(), ("python3", "train.py")) for name in EXPECTED if name != "ray"}
    assert set(map(tuple, found.values())) == {("python3", "train.py")}


def test_pod_of_ray_has_one_rank_and_rank_zero_decides(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("0" * 64)
    environ = {
        "DTJ_REPLICAS": "2", "DTJ_ORDINAL": "0", "DTJ_JOB": "job", "DTJ_JOB_UID": "uid", "DTJ_ENGINE": "ray",
        "DTJ_PROCESSES_PER_POD": "8", "DTJ_PEERS": "a:1,b:1", "DTJ_POD_IP": "10.0.0.1",
        "DTJ_SECRET_FILE": str(tmp_path / "key"),
    }  # fmt: skip
    settings = parse(environ, ["python3", "train.py"])
    assert (settings.processes, settings.success_policy) == (1, names.SUCCESS_RANK_0)
    other = parse(environ | {"DTJ_ENGINE": "jax"}, ["python3", "train.py"])
    assert (other.processes, other.success_policy) == (8, names.SUCCESS_ALL)


@pytest.mark.parametrize("name", ["mxnet", "", "..x", "__init__", "jax.x", "json/../jax"])
def test_unknown_engine_is_an_error_that_names_the_known_ones(name: str) -> None:
    with pytest.raises(SettingsError) as raised:
        engines.load(name)
    assert f"DTJ_ENGINE: {name!r} must be one of deepspeed, horovod, jax, ray, tensorflow, torch" in str(raised.value)


def test_ipv6_addresses_have_brackets_where_a_port_follows() -> None:
    where = place(master=("fd00::1", 21000), members=(("fd00::1", 21000),), nodes=1, node_rank=0, rank=1)
    assert engines.load("jax").environment(where, {})["JAX_COORDINATOR_ADDRESS"] == "[fd00::1]:21000"
    config = json.loads(engines.load("tensorflow").environment(where, {})["TF_CONFIG"])
    assert config["cluster"]["worker"] == ["[fd00::1]:21000", "[fd00::1]:21001"]
    assert engines.load("torch").environment(where, {})["MASTER_ADDR"] == "fd00::1"
    assert engines.load("horovod").environment(where, {})["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "[fd00::1]"


@pytest.mark.parametrize(
    ("inherited", "interface"),
    [
        ({}, None),
        ({"GLOO_SOCKET_IFNAME": "eth1"}, "eth1"),
        ({"GLOO_SOCKET_IFNAME": "a", "HOROVOD_GLOO_IFACE": "b"}, None),
    ],
    ids=["none", "that of torch", "the user's own"],
)
def test_horovod_listens_on_the_interface_of_torch(inherited: dict[str, str], interface: str | None) -> None:
    assert engines.load("horovod").environment(place(), inherited).get("HOROVOD_GLOO_IFACE") == interface


DEVICES: list[tuple[dict[str, int], dict[str, str], str | None]] = [
    ({"local_size": 1, "gpus": 4}, {}, "0,1,2,3"),
    ({"local_size": 1, "gpus": 4}, {"JAX_LOCAL_DEVICE_IDS": "2"}, None),  # the user's own stays
    ({"local_size": 1, "gpus": 1}, {}, None),
    ({"local_size": 4, "gpus": 4}, {}, None),  # one GPU each, by local rank
]


@pytest.mark.parametrize(("changes", "inherited", "devices"), DEVICES)
def test_one_jax_process_of_a_pod_has_all_of_its_gpus(
    changes: dict[str, int], inherited: dict[str, str], devices: str | None
) -> None:
    found = engines.load("jax").environment(place(**changes), inherited)
    assert found.get("JAX_LOCAL_DEVICE_IDS") == devices


FILES: dict[str, tuple[list[str], int]] = {
    "nvidia": (["nvidia0", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-caps", "null"], 2),
    "render nodes": (["null", "dri/renderD128", "dri/renderD129", "dri/card0"], 2),
    "nvidia and its render node": (["nvidia3", "dri/renderD128", "dri/renderD129"], 1),
    "none": (["null"], 0),
}


@pytest.mark.parametrize("case", FILES)
def test_gpus_are_counted_by_their_device_files(case: str, tmp_path: Path) -> None:
    files, count = FILES[case]
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    assert count_gpus(str(tmp_path)) == count


def test_engines_are_found_inside_of_the_zipapp(tmp_path: Path) -> None:
    target = tmp_path / "agent.pyz"
    build.build(str(target))
    with zipfile.ZipFile(target) as archive:
        assert "dtj_agent/engines/jax.py" in archive.namelist()
    sys.path.insert(0, str(target))
    try:
        import pkgutil

        assert [module.name for module in pkgutil.iter_modules([f"{target}/dtj_agent/engines"])] == engines.available()
    finally:
        sys.path.remove(str(target))
