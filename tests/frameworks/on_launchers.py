"""The tables of the flags of accelerate launch and deepspeed beside the parsers of the real packages.

`make test-long` runs this file, in the environment that hack/frameworks.sh builds.
"""

from __future__ import annotations

import pytest

from tests.lib.launchers import misread, parser_of

INSTALL = "hack/frameworks.sh installs it"


def test_every_flag_of_accelerate_launch_is_read_as_accelerate_reads_it() -> None:
    launch = pytest.importorskip("accelerate.commands.launch", reason=INSTALL)
    assert misread("accelerate launch", launch.launch_command_parser()) == []


def test_every_flag_of_deepspeed_is_read_as_deepspeed_reads_it() -> None:
    runner = pytest.importorskip("deepspeed.launcher.runner", reason=INSTALL)
    assert misread("deepspeed", parser_of(lambda: runner.parse_args([]))) == []
