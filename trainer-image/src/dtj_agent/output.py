"""What a pod says: the agent's own lines and its workers', to stdout and, with a checkpoint volume, to a file there."""

from __future__ import annotations

import os
from typing import Optional

from dtj_agent import names
from dtj_agent.logfile import Descriptor, RotatingFile, Writer


class Output:
    """Nothing here ever waits but `flush`."""

    def __init__(self, checkpoint_dir: Optional[str], pod: str) -> None:
        self._stdout = Writer(Descriptor(1), lambda text: None)
        self._file: Optional[Writer] = None
        if checkpoint_dir:
            path = os.path.join(checkpoint_dir, names.LOG_FOLDER, pod + ".log")
            self._file = Writer(RotatingFile(path), lambda text: self._stdout.write(_line(text)))

    def write(self, data: bytes) -> None:
        """Whole lines."""
        self._stdout.write(data)
        if self._file is not None:
            self._file.write(data)

    def log(self, text: str) -> None:
        """A line of the agent's own."""
        self.write(_line(text))

    def flush(self, seconds: float) -> None:
        """Until all is written, at most so long for each of the two."""
        self._stdout.flush(seconds)
        if self._file is not None:
            self._file.flush(seconds)


def _line(text: str) -> bytes:
    return b"[agent] %s\n" % text.replace("\n", " ").encode("utf-8", "replace")
