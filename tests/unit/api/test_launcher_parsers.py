"""The table of torchrun's flags beside torch's own parsers."""

from __future__ import annotations

from torch.distributed import launch, run

from tests.lib.launchers import misread, parser_of


def test_every_flag_of_torchrun_is_read_as_torch_reads_it() -> None:
    assert misread("torchrun", run.get_args_parser()) == []


def test_every_flag_of_the_old_launch_module_is_read_as_torch_reads_it() -> None:
    assert misread("torchrun", parser_of(lambda: launch.parse_args([]))) == []
