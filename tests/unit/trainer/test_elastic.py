"""A run whose world size changes uses each sample once, and trains as an undisturbed one."""

from __future__ import annotations

import json
import shutil
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.components.elastic import ElasticConfig, shard_size
from dtj_trainer.components.lr_schedule import ScheduleConfig, make_schedule, set_rates
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.order import DataOrder
from dtj_trainer.distributed.config_check import startup_facts
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.errors import ConfigError
from dtj_trainer.prepare import batch_rule, rate_rule
from dtj_trainer.state import StateConfig
from tests.unit.trainer.ranks import AgentSocket, finished, history, ranks
from tests.unit.trainer.ranks_elastic import poisoned, stopped, train
from tests.unit.trainer.test_snapshot_recovery import pods, resumed

pytestmark = pytest.mark.torch
STEPS = 15


@pytest.fixture
def job() -> Iterator[str]:
    """The uid of a job whose pods' shared memory is removed at the end."""
    uid = f"test-{uuid.uuid4().hex[:12]}"
    yield uid
    for folder in pods(uid):
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed run, on one rank."""
    folder = tmp_path_factory.mktemp("whole")
    finished(1, train, folder, "", str(folder), {"steps": STEPS})
    return folder


def steps(directory: Path) -> list[dict[str, Any]]:
    """Returns what the ranks did in each step, as the last attempt that did it has written."""
    lines = map(json.loads, (directory / "steps.jsonl").read_text().splitlines())
    return list({line["step"]: line for line in lines}.values())


def samples(directory: Path) -> list[list[int]]:
    """Returns the samples of each step, in order. A repeated one, which counts for nothing, is left out."""
    return [sorted({i for rank in line["micro"] for micro in rank for i in micro}) for line in steps(directory)]


def losses(directory: Path) -> list[float]:
    return list({line["step"]: line["loss"] for line in history(directory)}.values())


@pytest.mark.parametrize(
    ("rule", "sizes"), [("Global", {4: 10, 2: 10, 3: 10, 6: 10}), ("PerRank", {4: 10, 2: 5, 3: 7, 6: 15})]
)
def test_order_over_changing_worlds_gives_each_sample_once_an_epoch(rule: Any, sizes: dict[int, int]) -> None:
    kept, used = {}, []
    for world in (4, 2, 3, 6, 2):
        order = DataOrder(length=33, global_batch_size=10, seed=5, world_size=world, batch_rule=rule)
        order.load_state_dict(kept or order.state_dict())
        assert (order.size, order.first_share) == (sizes[world], 3)
        for _ in range(3):
            used += order.batch().tolist()
            order.advance()
        kept = order.state_dict()
    assert order.steps_for(5) == (165 - len(used)) // order.size
    for epoch in range(len(used) // 33):
        assert sorted(used[33 * epoch : 33 * (epoch + 1)]) == list(range(33))


def test_position_of_an_earlier_version_counts_this_world_as_the_first() -> None:
    order = DataOrder(length=33, global_batch_size=10, world_size=3, batch_rule="PerRank")
    order.load_state_dict({"position": 20, "seed": 0, "length": 33, "shuffle": 1, "global_batch_size": 10})
    assert (order.size, order.growth, order.state_dict()["first_world_size"]) == (10, 1.0, 3)


@pytest.mark.parametrize(("rule", "scale"), [("Keep", 1.0), ("Linear", 0.25), ("Sqrt", 0.5)])
def test_rate_after_a_change_follows_the_rule_and_the_samples_taken(rule: Any, scale: float) -> None:
    """A quarter of the ranks: half the samples of the run are taken, by another number of steps."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    order = DataOrder(length=80, global_batch_size=8, world_size=1, batch_rule="PerRank")
    config = ScheduleConfig(kind="cosine")
    scheduler = make_schedule(optimizer, config, 10, order, by_samples=True, rate_rule=rule)
    scheduler.load_state_dict(scheduler.state_dict() | {"last_epoch": 3})
    order.load_state_dict(order.state_dict() | {"position": 40, "first_world_size": 4})
    set_rates(optimizer, scheduler)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * scale * 0.5)
    assert scheduler.get_last_lr() == [optimizer.param_groups[0]["lr"]]


@pytest.mark.parametrize(("size", "world", "fits"), [(2, 4, 2), (2, 3, 3), (4, 6, 6), (4, 2, 2), (5, 12, 6)])
def test_replica_of_an_elastic_job_is_shared_by_a_divisor_of_its_ranks(size: int, world: int, fits: int) -> None:
    assert shard_size(size, world) == fits


def test_rank_of_a_job_that_is_not_elastic_differs_from_one_that_is() -> None:
    group = cast("Group", SimpleNamespace(world_size=2, device=torch.device("cpu"), backend="gloo"))
    facts = [
        startup_facts(StateConfig(), group, WorkerEnv.read(environ), CheckpointConfig())
        for environ in ({}, {"DTJ_MIN_REPLICAS": "2"})
    ]
    assert {name for name in facts[0] if facts[0][name] != facts[1][name]} == {"DTJ_MIN_REPLICAS"}


def test_elastic_rules_that_do_not_exist_are_rejected_by_name() -> None:
    with pytest.raises(ConfigError, match="DTJ_ELASTIC_BATCH='Local': write Global or PerRank"):
        WorkerEnv.read({"DTJ_ELASTIC_BATCH": "Local"})
    with pytest.raises(ConfigError, match=r"elastic.learning_rate='Sqr': write Keep or Linear or Sqrt"):
        ElasticConfig(learning_rate="Sqr")  # type: ignore[arg-type]
    env = WorkerEnv.read({"DTJ_ELASTIC_BATCH": "PerRank", "DTJ_ELASTIC_LEARNING_RATE": "Sqrt"})
    config = TrainerConfig(steps=1, elastic=ElasticConfig(learning_rate="Keep"))
    assert (batch_rule(config, env), rate_rule(config, env)) == ("PerRank", "Keep")


def killed(world: int, folder: Path, out: str, directory: Path, at: int, **env: str) -> str:
    """Runs a group that is killed at a step. Returns rank 0's output."""
    with ranks(world, train, folder, out, str(directory), {"steps": STEPS}, **env, KILL_AT=str(at)) as group:
        assert -signal.SIGKILL in group.wait(), group.everything()
        return group.output()


def test_memory_of_another_world_is_loaded_where_nothing_is_sharded(tmp_path: Path, job: str, whole: Path) -> None:
    """Two ranks, one, two again: the second rank's pod comes back empty."""
    broken, agent = tmp_path / "b", AgentSocket(tmp_path / "agent")
    env = {"DTJ_JOB_UID": job}
    killed(2, tmp_path, str(tmp_path / "1"), broken, 4, **env, DTJ_ATTEMPT="1")
    shutil.rmtree(pods(job)[1])
    alone = killed(1, tmp_path, str(tmp_path / "2"), broken, 9, **env, DTJ_ATTEMPT="2")
    assert resumed(alone) in ((4, "memory"), (5, "memory"))
    with agent:
        env |= {"DTJ_ATTEMPT": "3", "DTJ_AGENT_SOCKET": str(agent.path)}
        last = finished(2, train, tmp_path, "", str(broken), {"steps": STEPS}, **env)
    # The copy of the last step may not have been whole at the kill.
    assert resumed(last) in [(step, "a replica's memory") for step in (8, 9, 10)]
    (event,) = [h["event"] for h in agent.heard if "event" in h]
    assert event["reason"] == "WorldResized"
    assert "was taken by 1 ranks, and 2 load it" in event["message"]
    assert [line["world"] for line in steps(broken)] != [2] * STEPS
    assert samples(broken) == samples(whole)
    assert losses(broken) == pytest.approx(losses(whole), abs=1e-6)


def test_global_batch_over_four_two_three_ranks_trains_as_undisturbed(tmp_path: Path, whole: Path) -> None:
    changed = tmp_path / "b"
    for world, until in ((4, 5), (2, 10), (3, STEPS)):
        finished(world, train, tmp_path, "", str(changed), {"steps": until})
    assert [line["world"] for line in steps(changed)] == [4] * 5 + [2] * 5 + [3] * 5
    assert samples(changed) == samples(whole)
    assert losses(changed) == pytest.approx(losses(whole), abs=1e-6)
    shares = [len(micro) for line in steps(changed) for rank in line["micro"] for micro in rank]
    assert max(shares) == 2, "no rank has more at once than in the first attempt"


def test_hsdp_resumes_a_replica_from_memory_and_other_shards_from_the_volume(
    tmp_path: Path, job: str, whole: Path
) -> None:
    """Two pods of two ranks, one of them, and three of one rank: two do not divide three."""
    changed, out = tmp_path / "b", str(tmp_path / "out")
    sharded = {"strategy": {"kind": "hsdp", "shard_size": 2}}
    env = {"DTJ_JOB_UID": job, "DTJ_MIN_REPLICAS": "1", "RANKS_IN_POD": "2"}
    options = {"steps": 10, **sharded}
    with ranks(4, train, tmp_path, out, str(changed), options, **env, DTJ_ATTEMPT="1", KILL_AT="4") as group:
        assert -signal.SIGKILL in group.wait(), group.everything()
    lost, survivor = pods(job)
    shutil.rmtree(lost)
    survivor.rename(lost)  # the ranks have other numbers now
    fewer = finished(2, train, tmp_path, "", str(changed), options, **env, DTJ_ATTEMPT="2")
    assert resumed(fewer) in ((4, "memory"), (5, "memory"))
    options["steps"] = STEPS
    env["RANKS_IN_POD"] = "1"
    last = finished(3, train, tmp_path, "", str(changed), options, **env, DTJ_ATTEMPT="3")
    assert "resumed from step-00000010" in last
    assert samples(changed) == samples(whole)
    assert losses(changed) == pytest.approx(losses(whole), abs=1e-6)


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp_scratch"])
def test_trainer_divides_shards_from_memory_among_fewer_ranks(
    tmp_path: Path, job: str, whole: Path, strategy: str
) -> None:
    """Four pods, of which the upper half is lost; there is no checkpoint yet."""
    changed, out, env = tmp_path / "b", str(tmp_path / "out"), {"DTJ_JOB_UID": job}
    options: dict[str, Any] = {"steps": STEPS, "strategy": {"kind": strategy}}
    options["ema_decay"] = 0.9 if strategy == "fsdp" else None
    with ranks(4, train, tmp_path, out, str(changed), options, **env, DTJ_ATTEMPT="1", KILL_AT="7") as group:
        assert -signal.SIGKILL in group.wait(), group.everything()
    for lost in pods(job)[2:]:
        shutil.rmtree(lost)
    fewer = finished(2, train, tmp_path, "", str(changed), options, **env, DTJ_ATTEMPT="2")
    assert resumed(fewer) in ((6, "a partner's memory"), (7, "a partner's memory"))
    assert samples(changed) == samples(whole)
    assert losses(changed) == pytest.approx(losses(whole), abs=1e-6)


def test_per_rank_batch_scales_the_rate_and_uses_each_sample_once(tmp_path: Path, job: str) -> None:
    """The rules come from the environment; 32 samples over two ranks, the rest of two epochs over one."""
    directory, env = tmp_path / "a", {"DTJ_JOB_UID": job, "DTJ_ELASTIC_BATCH": "PerRank"}
    env |= {"DTJ_ELASTIC_LEARNING_RATE": "Linear"}
    options, out = {"epochs": 2.4}, str(tmp_path / "out")
    with ranks(2, train, tmp_path, out, str(directory), options, **env, DTJ_ATTEMPT="1", KILL_AT="3") as group:
        assert -signal.SIGKILL in group.wait(), group.everything()
    output = finished(1, train, tmp_path, "", str(directory), options, **env, DTJ_ATTEMPT="2")
    step, _ = resumed(output)
    done = steps(directory)
    assert [len(s) for s in samples(directory)] == [8] * step + [4] * ((48 - 8 * step) // 4)
    flat = [i for line in done for rank in line["micro"] for micro in rank for i in micro]
    assert sorted(flat[:20]) == sorted(flat[20:40]) == list(range(20))
    assert {(line["attempt"], line["lr"]) for line in history(directory)} == {(1, 0.05), (2, 0.025)}


def test_group_that_is_stopped_without_a_volume_continues_with_more_ranks(tmp_path: Path, job: str) -> None:
    env = {"DTJ_JOB_UID": job}
    with ranks(2, stopped, tmp_path, 4, **env, DTJ_ATTEMPT="1") as group:
        assert group.wait() == [143, 143], group.everything()
    grown = finished(3, stopped, tmp_path, -1, **env, DTJ_ATTEMPT="2")
    assert resumed(grown) == (5, "a replica's memory")
    assert grown.splitlines()[-1] == finished(1, stopped, tmp_path, -1).splitlines()[-1]


def test_snapshot_with_weights_that_are_not_finite_is_not_kept(tmp_path: Path, job: str) -> None:
    env, out = {"DTJ_JOB_UID": job}, str(tmp_path / "out")
    with ranks(2, poisoned, tmp_path, out, **env, DTJ_ATTEMPT="1", KILL_AT="8") as group:
        assert -signal.SIGKILL in group.wait(), group.everything()
        assert "weights are not finite" in group.output()
    assert resumed(finished(2, poisoned, tmp_path, out, **env, DTJ_ATTEMPT="2")) == (5, "memory")
