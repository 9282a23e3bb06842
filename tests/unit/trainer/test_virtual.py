"""Virtual ranks: a group in one process trains as one rank does, stops in a debugger, and names who fails."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d

from dtj_trainer import ConfigError, Task, TrainerConfig
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.strategies import DdpConfig, DdpScratchConfig, FsdpConfig, FsdpScratchConfig
from dtj_trainer.virtual import RankFailed, fit, main, run_ranks

TRAIN = "task: dtj_trainer.examples.digits:task\narguments: {model: cnn}\nsteps: 2\nglobal_batch_size: 32\n"


class Samples:
    """Sixty-four samples of four numbers."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.sin(torch.arange(4.0) + index)


def task(loss: Any = None) -> Task:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)))
    return Task(model=model, data=Samples(), loss=loss or (lambda model, batch: model(batch).square().mean()))


def config(strategy: Any = None) -> TrainerConfig:
    return TrainerConfig(steps=3, global_batch_size=12, strategy=strategy or DdpConfig())


@pytest.mark.parametrize("strategy", [DdpConfig, FsdpConfig, DdpScratchConfig, FsdpScratchConfig])
def test_virtual_ranks_train_as_one_rank_does(strategy: type[Any]) -> None:
    (alone,) = fit(task(), config(strategy()), 1)
    three = fit(task(), config(strategy()), 3)
    assert [result.loss for result in three] == pytest.approx([alone.loss] * 3, rel=1e-6)
    assert {result.step for result in three} == {3}
    assert not dist.is_initialized()


def test_breakpoint_stops_in_the_thread_of_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    stops: list[tuple[int, int]] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: stops.append((dist.get_rank(), dist.get_world_size())))

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        breakpoint()
        return model(batch).square().mean()

    fit(task(loss), config(), 2)
    assert sorted(stops) == [(0, 2)] * 3 + [(1, 2)] * 3


def test_collective_adds_up_over_the_virtual_ranks() -> None:
    def work(env: WorkerEnv) -> float:
        value = torch.tensor(float(env.rank + 1))
        dist.all_reduce(value)
        return float(value)

    assert run_ranks(4, work) == [10.0] * 4


def test_rank_that_fails_is_named_without_a_wait_for_the_others() -> None:
    def work(env: WorkerEnv) -> None:
        if env.rank == 1:
            raise ArithmeticError("bad sample")

    with pytest.raises(RankFailed, match="rank 1: ArithmeticError: bad sample") as failed:
        run_ranks(3, work)
    assert isinstance(failed.value.__cause__, ArithmeticError)


def test_rank_that_joins_late_leaves_no_default_group_in_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    failed, join = threading.Event(), distributed_c10d._update_default_pg

    def join_late(group: Any) -> None:
        if threading.current_thread().name == "rank 1":
            failed.wait(1)
        join(group)

    def work(env: WorkerEnv) -> None:
        raise ArithmeticError("bad sample")

    monkeypatch.setattr(distributed_c10d, "_update_default_pg", join_late)
    with pytest.raises(RankFailed, match="rank 0"):
        run_ranks(2, work)
    failed.set()
    for thread in threading.enumerate():
        if thread.name.startswith("rank "):
            thread.join(30)
    assert not dist.is_initialized()


def test_number_of_virtual_ranks_has_bounds() -> None:
    with pytest.raises(ConfigError, match="--ranks 0: write a number from 1 to 256"):
        run_ranks(0, lambda env: None)


@pytest.mark.parametrize(
    ("ranks", "fields", "code", "output"),
    [
        ("2", ["--steps", "1"], 0, "final step=1 loss="),
        ("2", ["--global_batch_size", "1"], 93, "global_batch_size=1 is less than the 2 ranks"),
        ("2", ["--no_such_field", "1"], 93, "no_such_field"),
    ],
)
def test_command_trains_a_config_or_names_the_field(
    tmp_path: Path, ranks: str, fields: list[str], code: int, output: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(TRAIN)
    assert main(["--ranks", ranks, "--config", str(path), *fields]) == code
    captured = capfd.readouterr()
    assert output in captured.out + captured.err
