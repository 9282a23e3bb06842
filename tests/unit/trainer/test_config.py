"""A wrong field, flag or variable is named before anything starts, with what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtj_trainer.cli import main
from dtj_trainer.config import TrainerConfig
from dtj_trainer.config_parser import build, override, read_yaml
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.errors import ConfigError
from dtj_trainer.strategies import FsdpConfig, HsdpConfig
from dtj_trainer.trainer import Trainer
from tests.unit.trainer.ranks import finished, ranks


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
        ({"steps": 1, "micro_batch_size": 0.5}, "micro_batch_size=0.5: write a whole number or auto"),
        ({"steps": 1, "optimizer": {"betas": [0.9]}}, "optimizer.betas=[0.9]: write a list of 2"),
        (
            {"steps": 1, "optimizer": {"betas": [0.9, 1]}},
            "optimizer.betas=(0.9, 1.0): write two numbers from 0 to below 1",
        ),
        ({"steps": 1, "optimizer": {"lr": float("nan")}}, "optimizer.lr=nan: write a number"),
        ({"steps": 1, "optimizer": {"lr": None}}, "optimizer.lr=None: write a number"),
        (
            {"steps": 1, "optimizer": {"learning_rate": 1}},
            "optimizer.learning_rate: no such field; fields are name, lr",
        ),
        ({"steps": 1, "strategy": {"kind": ["fsdp"]}}, "strategy={'kind': ['fsdp']}: write one of auto"),
        ({"steps": 1, "strategy": "fsdp_scratch", "optimizer": {"decay_vectors": False}}, "write strategy fsdp"),
        ({"epochs": -1}, "epochs=-1.0: write a number above 0"),
        ({"steps": 1, "global_batch_size": 0}, "global_batch_size=0: write 1 or more"),
        ({"steps": 1, "seed": -1}, "seed=-1: write a number from 0"),
        ({"steps": 1, "early_stop": 3}, "early_stop=3: write a mapping of fields"),
        (
            {"steps": 1, "strategy": {"kind": "fsdp", "cpu_offload": "optimizer"}},
            "write cpu_offload: all, or strategy fsdp_scratch",
        ),
        (
            {"steps": 1, "strategy": {"kind": "fsdp_scratch", "cpu_offload": "weights"}},
            "strategy.cpu_offload='weights': write true or false or optimizer or all",
        ),
        ({"steps": 1, "activation_offload": True, "compile": True}, "activation_offload does not work with compile"),
        ({"steps": 1, "recompute": "all"}, "recompute='all': write none or block or selective"),
        ({"steps": 1, "data": {"workers": -1}}, "data.workers=-1: write 0 or more"),
        ({"steps": 1, "ema_decay": 2}, "ema_decay=2.0: write a number between 0 and 1"),
        (
            {"steps": 1, "state": {"checkpoint": {"every_steps": 0}}},
            "checkpoint.every_steps=0: write a number of steps",
        ),
        (
            {"steps": 1, "state": {"checkpoint": {"retention": {"keep_last": 0}}}},
            "checkpoint.keep_last=0: write 1 or more",
        ),
        ({"steps": 1, "telemetry": {"profile": {"start": 5}}}, "telemetry.profile.directory is missing: write a path"),
        (
            {"steps": 1, "communication": {"rules": [{"names": "*"}]}},
            "communication.rules[0].rank is missing: write a whole number",
        ),
        ({"steps": 1, "communication": {"rules": {"names": "*"}}}, "write a list of mappings"),
        ({"steps": 1, "telemetry": {"mlflow": "file:/x"}}, "telemetry.mlflow='file:/x': write sqlite"),
    ],
)  # fmt: skip
def test_wrong_field_is_named_with_what_to_write(tree: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as e:
        build(TrainerConfig, tree)
    assert message in str(e.value)


def test_flags_override_the_fields_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("epochs: 3\nstrategy: fsdp\noptimizer: {lr: 1e-3, betas: [0.9, 0.95]}\nmicro_batch_size: auto\n")
    tree = read_yaml(file)
    override(tree, ["--optimizer.lr", "0.5", "--strategy.cpu-offload=true", "--micro-batch-size", "4", "--clip_norm=1"])
    config = build(TrainerConfig, tree)
    assert config.strategy == FsdpConfig(cpu_offload=True)
    assert (config.optimizer.lr, config.optimizer.betas, config.micro_batch_size, config.clip_norm) == (
        0.5,
        (0.9, 0.95),
        4,
        1.0,
    )
    override(tree, ["--strategy", "{kind: hsdp, shard_size: 2}"])
    assert build(TrainerConfig, tree).strategy == HsdpConfig(shard_size=2)
    with pytest.raises(ConfigError, match="--seed: a value must follow"):
        override(tree, ["--seed"])


def test_worker_env_reads_variables_of_torchrun_and_the_agent() -> None:
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
def test_wrong_variable_is_named_with_what_to_write(wrong: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WorkerEnv.read(wrong)


TRAIN = "task: dtj_trainer.examples.digits:task\narguments: {model: mlp}\nsteps: 5\n"


@pytest.mark.parametrize(
    ("file", "flags", "message"),
    [
        (TRAIN, ["--optimizer.lr", "0"], "optimizer.lr=0.0: write a rate above 0"),
        (TRAIN, ["--optimizer.betas", "[0.9"], "--optimizer.betas: '[0.9' is not valid YAML; write a number"),
        (TRAIN, ["--seed"], "--seed: a value must follow"),
        (TRAIN, ["steps", "3"], "'steps': write --field value"),
        (TRAIN, ["--epochs", "2"], "write either epochs or steps, not both"),
        (TRAIN, ["--arguments", "3"], "arguments=3: write a mapping of the task's arguments"),
        (
            TRAIN,
            ["--arguments.modl", "cnn"],
            "arguments={'model': 'mlp', 'modl': 'cnn'}: got an unexpected keyword argument 'modl'",
        ),
        (
            TRAIN,
            ["--task", "train.py"],
            "task='train.py': write module:function, such as dtj_trainer.examples.digits:task",
        ),
        (TRAIN, ["--task", "no_such:task"], "task='no_such:task': No module named 'no_such'"),
        (TRAIN, ["--task", "dtj_trainer.examples.digits:tusk"], "has no attribute 'tusk'"),
        (TRAIN, ["--task", "dtj_trainer.examples.digits:__doc__"], "is a str: write the name of a function"),
        (
            TRAIN,
            ["--task", "dtj_trainer.examples.digits:mlp", "--arguments", "{}"],
            "digits:mlp' gave a Sequential: return a dtj_trainer.Task",
        ),
        ("steps: 5\n", [], "task: no such line; write task: module:function"),
        ("- steps\n", [], "write a mapping of fields, such as epochs: 10"),
        ("steps: [1\n", [], "train.yaml is not valid YAML"),
        (None, [], "--config /no/such/train.yaml: No such file or directory"),
        (None, ["--config"], "--config: a value must follow"),
    ],
)
def test_command_line_error_is_one_line_and_exits_with_93(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str | None, flags: list[str], message: str
) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(file or "")
    given = ["--config", str(path)] if file else [] if flags else ["--config", "/no/such/train.yaml"]
    assert main([*given, *flags]) == 93
    stderr = capsys.readouterr().err
    assert message in stderr
    assert stderr.startswith("ConfigError: ")
    assert stderr.count("\n") == 1, "one line"


def test_batch_with_fewer_samples_than_ranks_is_rejected_before_any_rank_waits() -> None:
    with pytest.raises(ConfigError, match="global_batch_size=4 is less than the 8 ranks: write at least 8"):
        Trainer(TrainerConfig(steps=1, global_batch_size=4), WorkerEnv(world_size=8, launched=True))


@pytest.mark.torch
def test_dtj_train_trains_and_exits_with_93_for_a_wrong_config(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(TRAIN)
    command = ["dtj_trainer.cli", "--config", str(file)]
    with ranks(1, [*command, "--optimizer.lr", "0"], tmp_path) as group:
        assert group.wait() == [93]
        assert group.output().endswith("ConfigError: optimizer.lr=0.0: write a rate above 0\n")
    trace = ["--telemetry.profile", f"{{directory: {tmp_path}, start: 1, stop: 3}}"]
    output = finished(1, [*command, "--steps", "6", *trace], tmp_path)
    assert output.splitlines()[-1].startswith("final step=6 loss=")
    assert '"traceEvents"' in (tmp_path / "trace-rank0-1-3.json").read_text()
