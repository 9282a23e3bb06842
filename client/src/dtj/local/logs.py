"""`dtj run --logs`: what workers write, as they write it."""

from __future__ import annotations

from pathlib import Path


class LogTail:
    """Reads on in the log files of a run's pods."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._read: dict[Path, int] = {}

    def lines(self) -> list[str]:
        """Whole lines since the last call, each with its pod in front."""
        found = []
        for path in sorted(self._run_dir.glob("*.log")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            found += [f"{path.stem} {line}" for line in whole.decode(errors="replace").splitlines()]
        return found
