"""The flags of accelerate launch, composer and deepspeed, in our tables and as we pass them, beside the real packages.

`make test-long` runs this file, in the environments that hack/frameworks.sh and hack/composer.sh build.
"""

from __future__ import annotations

import os
import shlex

import pytest

from dtj.convert.documents import Options, convert
from tests.lib.launchers import misread, parser_of

INSTALL = "hack/frameworks.sh installs it"


def test_every_flag_of_accelerate_launch_is_read_as_accelerate_reads_it() -> None:
    launch = pytest.importorskip("accelerate.commands.launch", reason=INSTALL)
    assert misread("accelerate launch", launch.launch_command_parser()) == []


def test_accelerate_that_stays_for_deepspeed_makes_one_group_of_the_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """By pdsh, its default, each pod would train by itself, because a pod has no file of the hosts."""
    launch = pytest.importorskip("accelerate.commands.launch", reason=INSTALL)
    (draft,) = convert(
        "accelerate launch --use_deepspeed --deepspeed_multinode_launcher pdsh --num_machines 2 --num_processes 4 t.py",
        "run.sh",
        Options(image="i", gpus=2),
    )
    (container,) = draft.job["spec"]["template"]["spec"]["containers"]
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "1"), ("MASTER_ADDR", "pod-0"), ("MASTER_PORT", "1234")):
        monkeypatch.setenv(name, value)
    tokens = shlex.split(os.path.expandvars(container["command"][2]))
    args = launch.launch_command_parser().parse_args(tokens[tokens.index("launch") + 1 :])
    args, _, _ = launch._validate_launch_command(args)
    args.deepspeed_fields_from_accelerate_config = ""
    command, _ = launch.prepare_deepspeed_cmd_env(args)
    assert command is None, "else deepspeed starts the ranks, and not torchrun"
    assert (args.nnodes, args.node_rank, args.nproc_per_node, args.rdzv_endpoint) == ("2", 1, "2", "pod-0:1234")


def test_every_flag_of_composer_is_read_as_composer_reads_it() -> None:
    launcher = pytest.importorskip("composer.cli.launcher", reason="hack/composer.sh installs it")
    assert misread("composer", launcher._get_parser()) == []


def test_every_flag_of_deepspeed_is_read_as_deepspeed_reads_it() -> None:
    runner = pytest.importorskip("deepspeed.launcher.runner", reason=INSTALL)
    assert misread("deepspeed", parser_of(lambda: runner.parse_args([]))) == []
