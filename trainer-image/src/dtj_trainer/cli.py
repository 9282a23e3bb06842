"""Runs `dtj-train --config train.yaml [--field value …]` and `dtj-train export`.

A train.yaml names a task, which is a function that returns model, data and loss, and the fields of
TrainerConfig:

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
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dtj_contract import names
from dtj_trainer.checkpoint.export import export
from dtj_trainer.config import TrainerConfig
from dtj_trainer.config_parser import build, flags, override, read_yaml
from dtj_trainer.distributed import config_check
from dtj_trainer.errors import CheckpointInvalid, ConfigError, RankMismatch
from dtj_trainer.task import Task as Task
from dtj_trainer.trainer import Trainer


def find_task(spelled: object) -> Callable[..., Task]:
    """Returns the function that `task: module:function` names."""
    example = "such as dtj_trainer.examples.digits:task"
    if spelled is None:
        raise ConfigError(f"task: no such line; write task: module:function, {example}")
    module, _, function = str(spelled).partition(":")
    if not module or not function:
        raise ConfigError(f"task={spelled!r}: write module:function, {example}")
    try:
        found: Callable[..., Task] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as e:
        raise ConfigError(
            f"task={spelled!r}: {e}; write a module that Python finds (PYTHONPATH) and its function"
        ) from e
    if not callable(found):
        raise ConfigError(f"task={spelled!r} is a {type(found).__name__}: write the name of a function")
    return found


def make_task(spelled: object, arguments: object) -> Task:
    """Calls the task's function with the arguments of train.yaml."""
    function = find_task(spelled)
    if not isinstance(arguments, dict):
        raise ConfigError(f"arguments={arguments!r}: write a mapping of the task's arguments, such as {{model: cnn}}")
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as e:
        raise ConfigError(f"arguments={arguments!r}: {e}; {spelled} takes {inspect.signature(function)}") from e
    task = function(**arguments)
    if not isinstance(task, Task):
        raise ConfigError(f"task={spelled!r} gave a {type(task).__name__}: return a dtj_trainer.Task")
    return task


def task_facts(spelled: object, arguments: object) -> dict[str, str]:
    """Returns what ranks must share beside the config: the task, its arguments and its source file."""
    source = inspect.getsourcefile(find_task(spelled))
    digest = config_check.files_digest([Path(source)] if source else [])
    return {"task": str(spelled), "arguments": repr(arguments), f"code of {spelled}": digest}


def train(config_file: Path, given: Sequence[str]) -> int:
    """Trains as the file and the flags describe.

    Raises ConfigError before the first collective if a field is wrong.
    """
    import torch

    tree = read_yaml(config_file)
    override(tree, given)
    spelled = tree.pop("task", None)
    arguments: Any = tree.pop("arguments", {})
    config = build(TrainerConfig, tree)
    torch.manual_seed(config.seed)  # all ranks build the same model
    return run_task(make_task(spelled, arguments), config, facts=task_facts(spelled, arguments))


def run_task(
    task: Task,
    config: TrainerConfig,
    *,
    after_step: Callable[[int], None] | None = None,
    facts: Mapping[str, str] | None = None,
) -> int:
    """Trains a task, and prints `final step=… loss=…` and its validation on rank 0.

    Returns the exit code.

    Args:
        task: What is trained on what.
        config: How it is trained.
        after_step: Called with the step's number at the end of each step.
        facts: By name, what must be the same on every rank beside the config.
    """
    with Trainer(config) as trainer:
        if facts:
            config_check.check(facts, trainer.group)
        result = trainer.fit(**task.arguments(), after_step=after_step)
        if trainer.group.rank == 0:
            measured = "".join(f" {k}={v!r}" for k, v in result.validation.items() if k != "loss")
            sys.stdout.write(f"final step={result.step} loss={result.loss!r}{measured}\n")
            sys.stdout.flush()
    return 0


def guarded(main: Callable[[], int]) -> int:
    """Runs `main` and returns its exit code, which makes the agent restart the group or not.

    An error that no restart can cure is printed as one line and returns EXIT_NO_RESTART (93).
    """
    rank = os.environ.get("RANK", "0")
    line = f"%(asctime)s rank {rank} %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=line, stream=sys.stderr)
    try:
        return main()
    except (ConfigError, RankMismatch, CheckpointInvalid) as e:
        text = str(e)
        # torch repeats the traceback of a loader's worker; its last line is the error.
        if text.startswith("Caught "):
            text = text.rstrip().splitlines()[-1].partition(f"{type(e).__name__}: ")[2] or text
        sys.stderr.write(f"{type(e).__name__}: {text}\n")
        return names.EXIT_NO_RESTART


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Exit codes: 0 done, 143 stopped by SIGTERM after a save, 93 a wrong config, else an error.
    """
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
    """Returns (the file of `--config`, the other arguments, which are fields)."""
    rest = list(given)
    for at, flag in enumerate(rest):
        name, equals, value = flag.partition("=")
        if name == "--config":
            taken = [value] if equals else rest[at + 1 : at + 2]
            if not taken or not taken[0]:
                raise ConfigError("--config: a value must follow, such as --config train.yaml")
            del rest[at : at + 1 + (not equals)]
            return Path(taken[0]), rest
    raise ConfigError("--config is missing: write dtj-train --config train.yaml [--field value ...]")


def _export(checkpoint: Path, out: Path, part: str) -> int:
    count = export(checkpoint, out, part=part)
    sys.stdout.write(f"{count} tensors written to {out}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
