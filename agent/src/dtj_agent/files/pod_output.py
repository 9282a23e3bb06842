"""What a pod says: the agent's own lines and its workers', to stdout and, with a checkpoint volume, to a file there."""

from __future__ import annotations

import os
import time
from typing import Callable, List, Optional, Tuple

from dtj_agent.files.log_file import DescriptorSink, LogWriter, RotatingFileSink, Valve
from dtj_contract import names


class PodOutput:
    """Nothing here ever waits but `flush`."""

    def __init__(self, checkpoint_dir: Optional[str], pod: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stdout = LogWriter(DescriptorSink(1), lambda text: None)
        self._file: Optional[LogWriter] = None
        if checkpoint_dir:
            path = os.path.join(checkpoint_dir, names.LOG_FOLDER, pod + ".log")
            self._file = LogWriter(RotatingFileSink(path), lambda text: self._stdout.write(_line(text)))
        writers = [writer for writer in (self._stdout, self._file) if writer is not None]
        self._valves: List[Tuple[LogWriter, Valve]] = [(writer, Valve()) for writer in writers]

    def has_room(self) -> bool:
        """May more be read of the workers? Each of the two holds them up for a bounded time only."""
        now = self._clock()
        rooms = [valve.is_open(writer.is_full, now) for writer, valve in self._valves]  # each has to hear of it
        return all(rooms)

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
