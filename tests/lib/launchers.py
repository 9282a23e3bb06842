"""Compares our table of a launcher's flags with the launcher's own parser."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from unittest.mock import patch

from dtj_core.api import launcher_flags

ENDS = ("help", "version", "check_build")
"""Flags that print something, and start no script."""


def parser_of(parse: Callable[[], object]) -> argparse.ArgumentParser:
    """Returns the parser that a function makes, at the moment when it has the arguments parsed."""
    made: list[argparse.ArgumentParser] = []

    def stop(parser: argparse.ArgumentParser, args: object = None) -> None:
        made.append(parser)
        raise SystemExit

    with patch.object(argparse.ArgumentParser, "parse_args", stop), suppress(SystemExit):
        parse()
    (parser,) = made
    return parser


def misread(launcher: str, parser: argparse.ArgumentParser) -> list[str]:
    """Returns the spellings of the parser's flags that our table lacks, or reads with more or fewer values."""
    found = []
    spellings = [(option, action) for action in parser._actions for option in action.option_strings]
    assert len(spellings) > 15
    for option, action in spellings:
        values = ["value"] * (1 if action.nargs is None else int(action.nargs))
        own, script = launcher_flags.split(launcher, [option, *values, "program"])
        read = [(value, flag is not None) for _, value, flag in own]
        if action.dest not in ENDS and (read, script) != ([(" ".join(values), True)], ["program"]):
            found.append(option)
    return found
