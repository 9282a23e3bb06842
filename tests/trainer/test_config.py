"""A wrong field is named before anything starts, with what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtj_trainer.config import TrainerConfig
from dtj_trainer.env import WorkerEnv
from dtj_trainer.errors import ConfigError
from dtj_trainer.load import build, override, read_yaml
from dtj_trainer.strategies import FsdpConfig, HsdpConfig
from tests.trainer.ranks import finished, ranks


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({}, "either epochs or steps"),
        ({"steps": 1, "epochs": 2}, "either epochs or steps"),
        ({"steps": 0}, "steps=0: write 1 or more"),
        ({"stepps": 10}, "stepps: no such field; did you mean steps"),
        ({"steps": "ten"}, "steps='ten': write a whole number"),
        ({"steps": True}, "steps=True: write a whole number"),
        ({"steps": 1, "optimizer": {"lr": "fast"}}, "optimizer.lr='fast': write a number"),
        ({"steps": 1, "optimizer": {"lr": -1}}, "optimizer.lr=-1.0: write a rate above 0"),
        ({"steps": 1, "optimizer": 3}, "optimizer=3: write a mapping of fields"),
        ({"steps": 1, "strategy": "zero"}, "strategy='zero': write one of auto, ddp, fsdp"),
        ({"steps": 1, "strategy": {"kind": "fsdp", "offload": True}}, "strategy.offload: no such field; did you mean"),
        ({"steps": 1, "precision": {"dtype": "fp8"}}, "precision.dtype='fp8': write fp32 or bf16 or fp16"),
        ({"steps": 1, "micro_batch_size": "auto", "strategy": "fsdp"}, "write a number, or strategy: ddp"),
        ({"steps": 1, "ema_decay": 2}, "ema_decay=2.0: write a number between 0 and 1"),
        ({"steps": 1, "state": {"checkpoint": {"every_steps": 0}}}, "checkpoint.every_steps=0: write a number of steps"),
        ({"steps": 1, "state": {"checkpoint": {"retention": {"keep_last": 0}}}}, "checkpoint.keep_last=0: write 1 or more"),
        ({"steps": 1, "telemetry": {"mlflow": "file:/x"}}, "telemetry.mlflow='file:/x': write sqlite"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named_with_what_to_write(tree: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as e:
        build(TrainerConfig, tree)
    assert message in str(e.value)


def test_a_file_and_flags_make_one_config_and_the_flags_win(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("epochs: 3\nstrategy: fsdp\noptimizer: {lr: 1e-3, betas: [0.9, 0.95]}\nmicro_batch_size: auto\n")
    tree = read_yaml(file)
    override(tree, ["--optimizer.lr", "0.5", "--strategy.cpu-offload=true", "--micro-batch-size", "4", "--clip_norm=1"])
    config = build(TrainerConfig, tree)
    assert config.strategy == FsdpConfig(cpu_offload=True)
    assert (config.optimizer.lr, config.optimizer.betas, config.micro_batch_size, config.clip_norm) == (0.5, (0.9, 0.95), 4, 1.0)
    override(tree, ["--strategy", "{kind: hsdp, shard_size: 2}"])
    assert build(TrainerConfig, tree).strategy == HsdpConfig(shard_size=2)
    with pytest.raises(ConfigError, match="--seed: a value must follow"):
        override(tree, ["--seed"])


def test_the_environment_is_read_as_torchrun_and_the_agent_give_it() -> None:
    assert WorkerEnv.read({}) == WorkerEnv()
    env = WorkerEnv.read(
        {"RANK": "1", "WORLD_SIZE": "2", "DTJ_ATTEMPT": "3", "DTJ_CHECKPOINT_DIR": "/c", "DTJ_CHECKPOINT_KEEP": "5"}
    )
    assert (env.rank, env.launched, env.attempt, env.checkpoint_dir, env.checkpoint_keep) == (1, True, 3, Path("/c"), 5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"RANK": "x"}, "RANK='x': write a whole number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "below WORLD_SIZE=2"),
        ({"DTJ_BACKEND": "mpi"}, "write gloo, nccl or auto"),
    ],
)
def test_a_wrong_variable_is_named(wrong: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WorkerEnv.read(wrong)


@pytest.mark.torch
def test_dtj_train_trains_and_a_wrong_config_ends_with_the_exit_code_that_asks_for_no_restart(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("task: dtj_trainer.examples.digits:task\narguments: {model: mlp}\nsteps: 5\n")
    command = ["dtj_trainer.cli", "--config", str(file)]
    with ranks(1, [*command, "--optimizer.lr", "0"], tmp_path) as group:
        assert group.wait() == [93]
        assert group.output().endswith("ConfigError: optimizer.lr=0.0: write a rate above 0\n")
    trace = ["--telemetry.profile", f"{{directory: {tmp_path}, start: 1, stop: 3}}"]
    output = finished(1, [*command, "--steps", "6", *trace], tmp_path)
    assert output.splitlines()[-1].startswith("final step=6 loss=")
    assert '"traceEvents"' in (tmp_path / "trace-rank0-1-3.json").read_text()
