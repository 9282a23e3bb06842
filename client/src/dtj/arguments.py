"""The parts of the command line that verbs share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from dtj.errors import InputError

Command = Callable[[argparse.Namespace], int]
DISTRIBUTION = "dtj-client"  # the name `dtj` belongs to another project on PyPI
Verbs = argparse._SubParsersAction  # argparse has no public name for it


class Verb(argparse.ArgumentParser):
    """Keeps what follows `--` as the command of a verb that takes one, and parses no flag of it."""

    takes_command = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parses the arguments before `--`."""
        own = list(sys.argv[1:] if args is None else args)
        if not self.takes_command:
            return super().parse_known_args(own, namespace)
        at = own.index("--") if "--" in own else len(own)
        flags, rest = super().parse_known_args(own[:at], namespace)
        flags.script = own[at + 1 :] if at < len(own) else None
        return flags, rest


def one_file(flags: argparse.Namespace, commands: argparse.ArgumentParser) -> None:
    """Accepts `dtj run job.yaml` and `dtj run -f job.yaml` alike, for every verb that takes a file."""
    given = [name for name in (flags.file, flags.filename) if name is not None]
    if getattr(flags, "script", None) is not None:
        if given:
            commands.error(f"{given[0]} and --: give a FILE, or a script after --, and not both")
        return
    if len(given) != 1:
        script = ", or a script after --: dtj run -- train.py" if "script" in flags else ""
        commands.error(f"give one FILE: job.yaml, or - for standard input{script}")
    flags.file = flags.filename = flags.file or flags.filename


def file_argument(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("file", nargs="?", metavar="FILE", help="job.yaml, or - for standard input")
    verb.add_argument("-f", "--filename", metavar="FILE", help="FILE as a flag, as with kubectl")


def cluster_flags(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--kubeconfig", metavar="FILE", help="as with kubectl [$KUBECONFIG, ~/.kube/config]")
    verb.add_argument("--context", metavar="NAME", help="context of the kubeconfig")
    verb.add_argument("-n", "--namespace", metavar="NAME", help="namespace [that of the context]")


def natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: write a whole number, 0 or more")
    return int(text)


def late(module: str, name: str) -> Command:
    """Returns a command that imports its module when it is called.

    `dtj --help` and shell completion should not wait for pydantic and urllib3.
    """

    def call(flags: argparse.Namespace) -> int:
        import importlib

        try:
            found: Command = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            raise InputError(
                f"{error.name} is not installed for {sys.executable}: README.md describes how to install {DISTRIBUTION}"
            ) from error
        return found(flags)

    return call
