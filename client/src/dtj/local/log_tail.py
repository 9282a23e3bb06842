"""Reads the output of workers while they write it.

The default is the output of rank 0.
"""

from __future__ import annotations

from pathlib import Path

BYTES_PER_LOOK = 64 * 1024  # per pod; more than anybody reads
LINES_PER_LOOK = 50
LINE_CHARACTERS = 500


class LogTail:
    """Reads new lines of the log files of a run's pods.

    With a `rank` it returns that rank's lines only, at most LINES_PER_LOOK a call, and reports how
    many were omitted. Without one it returns every line of every rank and of the agents.
    """

    def __init__(self, run_dir: Path, rank: int | None = None) -> None:
        self._run_dir = run_dir
        self._prefix = None if rank is None else f"[rank {rank}] "
        self._read: dict[Path, int] = {}

    def lines(self) -> list[str]:
        """Returns the whole lines since the last call, each with its pod, or only its rank, in front."""
        found = []
        for path in sorted(self._run_dir.glob("*.log")):
            found += self._all(path) if self._prefix is None else self._of_rank(path, self._prefix)
        return found

    def _all(self, path: Path) -> list[str]:
        return [f"{path.stem} {line}" for line in self._new(path).decode(errors="replace").splitlines()]

    def _of_rank(self, path: Path, prefix: str) -> list[str]:
        text, skipped = self._newest(path)
        mine = [line for line in text.decode(errors="replace").split("\n") if line.startswith(prefix)]
        shown = [_last_drawn(line, prefix)[:LINE_CHARACTERS] for line in mine[-LINES_PER_LOOK:]]
        if skipped or len(mine) > len(shown):
            count = f"at least {len(mine) - len(shown)} lines" if skipped else f"{len(mine) - len(shown)} lines"
            shown.insert(0, f"{prefix}... {count} omitted; all are in {path}")
        return shown

    def _newest(self, path: Path) -> tuple[bytes, bool]:
        """Returns the newest whole lines since the last call, and whether older ones were skipped."""
        behind = path.stat().st_size - self._read.get(path, 0) - BYTES_PER_LOOK
        if behind <= 0:
            return self._new(path), False
        self._read[path] = self._read.get(path, 0) + behind
        return self._new(path).partition(b"\n")[2], True

    def _new(self, path: Path) -> bytes:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(whole)
        return whole


def _last_drawn(line: str, prefix: str) -> str:
    """Returns the last state of a progress bar, which starts over with every carriage return."""
    drawn = line.rstrip("\r").rpartition("\r")[2]
    return drawn if drawn.startswith(prefix) else prefix + drawn
