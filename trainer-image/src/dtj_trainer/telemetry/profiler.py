"""Records a window of steps with torch.profiler, as a Chrome trace of each configured rank."""

from __future__ import annotations

import logging

import torch
from torch.profiler import ProfilerActivity, profile

from dtj_trainer.telemetry.sinks import ProfileConfig

log = logging.getLogger(__name__)


class ProfilerWindow:
    """Records from `config.start` to `config.stop`.

    Call `before(step)` before every step, and `close` at the end.
    """

    def __init__(self, config: ProfileConfig | None, rank: int) -> None:
        self._config = config if config is not None and rank in config.ranks else None
        self._rank = rank
        self._profiler: profile | None = None
        self._first = 0

    def before(self, step: int) -> None:
        """Starts or ends the recording at the window's bounds."""
        config = self._config
        if config is None:
            return
        if self._profiler is None and config.start <= step < config.stop:
            activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
            self._profiler = profile(activities=activities)
            self._profiler.start()
            self._first = step
        elif self._profiler is not None and step >= config.stop:
            self._export(step)

    def close(self, step: int) -> None:
        """Writes what is recorded if the run ends inside the window."""
        if self._profiler is not None:
            self._export(step)

    def _export(self, step: int) -> None:
        if self._profiler is None or self._config is None:
            return
        self._profiler.stop()
        path = self._config.directory / f"trace-rank{self._rank}-{self._first}-{step}.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._profiler.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as e:
            # The training needs no trace, and the next attempt would fail at the same step.
            log.warning("telemetry.profile.directory=%s: no trace is written: %s", path.parent, e)
        self._profiler = None
