"""The lines of JSON by which a process that imports in the background reports to the warm process."""

from __future__ import annotations

import json
import os
import select
from typing import Dict, NamedTuple, Optional

from dtj_agent.warm.script_changes import package

IMPORT_SECONDS = 60.0  # one module, in the background
NO_PACKAGE = "?"
"""The bad package of a process that ended before its first import."""
_BEGINNING, _DONE, _BAD = "importing", "done", "bad"


class Verdict(NamedTuple):
    """The end of a try. `bad`: the package that can't stay, with the reason; empty if all modules are there."""

    bad: str
    why: str
    by_rank: bool = False
    """Whether the package can be imported by a process that becomes one rank."""
    died: bool = False
    """Whether the process has ended or makes no progress, which something else may have caused."""
    modules: int = 0
    seconds: float = 0.0


class ReportReader:
    """Reads the reports of one process. `fd`: a pipe or a socket, which stays the caller's."""

    def __init__(self, fd: int, now: float) -> None:
        self.until = now + IMPORT_SECONDS
        self._fd = fd
        self._importing = ""
        self._text = b""

    def news(self, now: float) -> Optional[Verdict]:
        """Returns the verdict if there is one: also of a process that ended without, or imports for too long."""
        ended = False
        while select.select([self._fd], [], [], 0)[0]:
            try:
                data = os.read(self._fd, 65536)
            except OSError:  # a socket whose other end was closed with data in it
                data = b""
            if not data:
                ended = True
                break
            self._text += data
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            message = json.loads(line)
            if _DONE in message:
                return Verdict("", "", modules=message[_DONE], seconds=message["seconds"])
            if _BAD in message:
                return Verdict(message[_BAD], message["why"], message["byRank"])
            self._importing, self.until = message[_BEGINNING], now + IMPORT_SECONDS
        if ended:
            return Verdict(package(self._importing) or NO_PACKAGE, "its import ended the process", died=True)
        if now > self.until:
            why = "its import took more than %d s" % IMPORT_SECONDS
            return Verdict(package(self._importing) or NO_PACKAGE, why, died=True)
        return None


class ReportWriter:
    """Writes them. The process ends where nobody reads them any more."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def importing(self, name: str) -> None:
        """Reports that the import of a module begins."""
        self._write({_BEGINNING: name})

    def bad(self, package: str, why: str, by_rank: bool) -> None:
        """Reports a package that can't stay."""
        self._write({_BAD: package, "why": why, "byRank": by_rank})

    def done(self, modules: int, seconds: float) -> None:
        """Reports that everything is imported."""
        self._write({_DONE: modules, "seconds": round(seconds, 2)})

    def _write(self, message: Dict[str, object]) -> None:
        try:
            os.write(self._fd, json.dumps(message).encode() + b"\n")
        except OSError:  # the warm process has ended
            os._exit(0)
