"""The log of a pod: lines of the agent and its workers, to stdout and, with a checkpoint volume, to a file there."""

from __future__ import annotations

import os
import time
from typing import Callable, List, Optional, Tuple

from dtj_agent.files.log_file import DescriptorSink, LogWriter, RotatingFileSink, Valve
from dtj_contract import names


class PodOutput:
    """Writes to all logs of the pod. Only `flush` ever waits."""

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
        """Returns whether more output may be read. Each of the two logs blocks the workers for a bounded time only."""
        now = self._clock()
        # Every valve must be asked each time, because it measures how long its log has been full.
        rooms = [valve.is_open(writer.is_full, now) for writer, valve in self._valves]
        return all(rooms)

    def write(self, data: bytes) -> None:
        """Writes whole lines."""
        self._stdout.write(data)
        if self._file is not None:
            self._file.write(data)

    def log(self, text: str) -> None:
        """Writes a line of the agent itself."""
        self.write(_line(text))

    def flush(self, seconds: float) -> None:
        """Waits until all is written, at most `seconds` for each of the two logs."""
        self._stdout.flush(seconds)
        if self._file is not None:
            self._file.flush(seconds)


def _line(text: str) -> bytes:
    return b"[agent] %s\n" % text.replace("\n", " ").encode("utf-8", "replace")
