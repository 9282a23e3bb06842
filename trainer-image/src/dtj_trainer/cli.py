"""`dtj-train --config train.yaml [--field value …]`, and `dtj-train export`.

A train.yaml names a task, a function that gives model, data and loss, and beside it the fields of TrainerConfig:

    task: dtj_trainer.examples.digits:task
    arguments: {model: cnn}
    epochs: 10
    optimizer: {lr: 0.003}
    strategy: fsdp
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from dtj_contract import names
from dtj_trainer.checkpoint.export import export
from dtj_trainer.components.validation import Measure
from dtj_trainer.config import TrainerConfig
from dtj_trainer.config_parser import build, flags, override, read_yaml
from dtj_trainer.data.loader import StreamData
from dtj_trainer.distributed import config_check
from dtj_trainer.errors import CheckpointInvalid, ConfigError, RankMismatch
from dtj_trainer.trainer import Data, Loss, Trainer


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What is trained on what: the arguments of Trainer.fit."""

    model: nn.Module
    data: Data | StreamData
    loss: Loss
    validation: Data | None = None
    measure: Measure | None = None
    optimizer: Callable[[nn.Module], Optimizer] | None = None
    flops_per_sample: float | None = None
    tokens_per_sample: int | None = None


def find_task(spelled: object) -> Callable[..., Task]:
    """The function that `task: module:function` names."""
    example = "such as dtj_trainer.examples.digits:task"
    if spelled is None:
        raise ConfigError(f"task: no such line; write task: module:function, {example}")
    module, _, function = str(spelled).partition(":")
    if not module or not function:
        raise ConfigError(f"task={spelled!r}: write module:function, {example}")
    try:
        found: Callable[..., Task] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as e:
        raise ConfigError(f"task={spelled!r}: {e}; write a module that Python finds (PYTHONPATH) and its function") from e
    if not callable(found):
        raise ConfigError(f"task={spelled!r} is a {type(found).__name__}: write the name of a function")
    return found


def make_task(spelled: object, arguments: object) -> Task:
    """What the task's function gives for the arguments of train.yaml."""
    function = find_task(spelled)
    if not isinstance(arguments, dict):
        raise ConfigError(f"arguments={arguments!r}: write a mapping of the task's arguments, such as {{model: cnn}}")
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as e:
        raise ConfigError(f"arguments={arguments!r}: {e}; {spelled} takes {inspect.signature(function)}") from e
    task = function(**arguments)
    if not all(hasattr(task, field.name) for field in fields(Task)):  # as a script this module is there twice, and so is Task
        raise ConfigError(f"task={spelled!r} gave a {type(task).__name__}: return a dtj_trainer.cli.Task")
    return task


def task_facts(spelled: object, arguments: object) -> dict[str, str]:
    """What must be the same on every rank, beside the config: the task, its arguments and the file it stands in."""
    source = inspect.getsourcefile(find_task(spelled))
    digest = config_check.files_digest([Path(source)] if source else [])
    return {"task": str(spelled), "arguments": repr(arguments), f"code of {spelled}": digest}


def train(config_file: Path, given: Sequence[str]) -> int:
    """Trains as the file says. Raises ConfigError before the first collective if a field is wrong."""
    import torch

    tree = read_yaml(config_file)
    override(tree, given)
    spelled = tree.pop("task", None)
    arguments: Any = tree.pop("arguments", {})
    config = build(TrainerConfig, tree)
    torch.manual_seed(config.seed)  # all ranks build the same model
    task = make_task(spelled, arguments)
    with Trainer(config) as trainer:
        config_check.check(task_facts(spelled, arguments), trainer.group)
        result = trainer.fit(
            task.model,
            task.data,
            loss=task.loss,
            validation=task.validation,
            measure=task.measure,
            optimizer=task.optimizer,
            flops_per_sample=task.flops_per_sample,
            tokens_per_sample=task.tokens_per_sample,
        )
        if trainer.group.rank == 0:
            measured = "".join(f" {k}={v!r}" for k, v in result.validation.items() if k != "loss")
            sys.stdout.write(f"final step={result.step} loss={result.loss!r}{measured}\n")
    return 0


def guarded(main: Callable[[], int]) -> int:
    """Runs `main`; an error that a restart can't cure ends with the exit code that tells the agent so, and one line."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        return main()
    except (ConfigError, RankMismatch, CheckpointInvalid) as e:
        text = str(e)
        if text.startswith("Caught "):  # torch's tale of an error in a worker of the loader: its last line is the error
            text = text.rstrip().splitlines()[-1].partition(f"{type(e).__name__}: ")[2] or text
        sys.stderr.write(f"{type(e).__name__}: {text}\n")
        return names.EXIT_NO_RESTART


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Exit codes: 0 done, 143 stopped by SIGTERM after a save, 93 a wrong config, else an error."""
    parser = argparse.ArgumentParser(
        prog="dtj-train",
        description="Train as a YAML file says; --field value overrides it.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="train.yaml")
    parser.add_argument("command", nargs="?", choices=["export"], help="a checkpoint's model as one file")
    parser.add_argument("checkpoint", nargs="?", type=Path, help="step folder, or a job's folder for its newest")
    parser.add_argument("out", nargs="?", type=Path, help="ends in .safetensors, .pt or .pth")
    parser.add_argument("--part", default="model", help="what to export: model, ema")
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["export"]:
        args = parser.parse_args(given)
        if args.out is None:
            parser.error("export CHECKPOINT OUT")
        return guarded(lambda: _export(args.checkpoint, args.out, args.part))
    if {"-h", "--help"} & set(given):
        parser.epilog = "\n  ".join(["fields, their values and [defaults]:", *flags(TrainerConfig)])
        parser.parse_args(["--help"])
    return guarded(lambda: train(*config_and_flags(given)))


def config_and_flags(given: Sequence[str]) -> tuple[Path, list[str]]:
    """`--config train.yaml` out of the arguments, and the rest, which are fields."""
    rest = list(given)
    for at, flag in enumerate(rest):
        name, equals, value = flag.partition("=")
        if name == "--config":
            taken = [value] if equals else rest[at + 1 : at + 2]
            if not taken or not taken[0]:
                raise ConfigError("--config: a value must follow, such as --config train.yaml")
            del rest[at : at + 1 + (not equals)]
            return Path(taken[0]), rest
    raise ConfigError("--config: no such flag; write dtj-train --config train.yaml [--field value ...]")


def _export(checkpoint: Path, out: Path, part: str) -> int:
    count = export(checkpoint, out, part=part)
    sys.stdout.write(f"{count} tensors written to {out}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
