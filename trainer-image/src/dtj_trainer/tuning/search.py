"""The search for the fastest settings: one field after the other, each with few values. Pure: the caller measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

WORTH = 0.95
"""The share of the best time that other settings may take to replace the best: a difference below is noise."""
BUCKETS_MB = (1.0, 5.0, 25.0, 100.0)
PREFETCH = (2, 4, 8)
PATIENCE = 2
"""Values in a row that do not help, after which no higher one is tried: workers cost memory and cores. The first worker
alone may not help where loading takes far longer than the step beside it."""
Field = Literal["micro_batch_size", "bucket_cap_mb", "workers", "prefetch"]
ORDER: tuple[Field, ...] = ("micro_batch_size", "bucket_cap_mb", "workers", "prefetch")
"""The work of a step first, because it decides how much of the loading can hide behind it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Values of the fields that are tuned."""

    workers: int
    prefetch: int
    micro_batch_size: int | None = None
    """None: not tuned, because the config fixes it."""
    bucket_cap_mb: float | None = None
    """None: not tuned, because the strategy has no buckets or compresses them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds of the values that are tried."""

    parameter_mb: float
    """Megabytes of a rank's gradients: a larger bucket is one bucket."""
    most_workers: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The fastest settings, and the seconds that a step takes with each that was tried, in order."""

    settings: Settings
    tried: Sequence[tuple[Settings, float]]
    complete: bool
    """Whether the time sufficed for all values."""

    @property
    def before(self) -> float:
        """Seconds of a step as configured."""
        return self.tried[0][1]

    @property
    def after(self) -> float:
        """Seconds of a step with the fastest settings."""
        return dict(self.tried)[self.settings]


def candidates(field: Field, now: Settings, limits: Limits) -> list[Settings]:
    """Returns the settings to try beside `now`, which differ from it in one field."""
    values: Sequence[Any] = []
    match field:
        case "micro_batch_size" if now.micro_batch_size is not None:
            values = sorted({size for part in (2, 4) if (size := now.micro_batch_size // part) >= 1}, reverse=True)
        case "bucket_cap_mb" if now.bucket_cap_mb is not None:
            smaller = [mb for mb in BUCKETS_MB if mb < limits.parameter_mb]
            whole = [mb for mb in BUCKETS_MB if mb >= limits.parameter_mb][:1]
            values = [*smaller, *whole]
            if now.bucket_cap_mb >= limits.parameter_mb:
                values = smaller
        case "workers":
            first = max(1, 2 * now.workers)
            values = [n for power in range(4) if (n := first << power) <= limits.most_workers]
        case "prefetch" if now.workers:
            values = [n for n in PREFETCH if n > now.prefetch]
    return [replace(now, **{field: value}) for value in values if value != getattr(now, field)]


def search(
    start: Settings, limits: Limits, measure: Callable[[Settings], float], has_time: Callable[[], bool]
) -> Outcome:
    """Returns the fastest settings that were found.

    Args:
        start: The settings as configured, which are measured first.
        limits: What bounds the values.
        measure: Returns the seconds of a step with given settings.
        has_time: Returns whether to measure once more; asked before each measurement but the first.
    """
    best, best_seconds = start, measure(start)
    tried = [(start, best_seconds)]
    for field in ORDER:
        in_vain = 0
        for settings in candidates(field, best, limits):
            if not has_time():
                return Outcome(settings=best, tried=tried, complete=False)
            seconds = measure(settings)
            tried.append((settings, seconds))
            if seconds < WORTH * best_seconds:
                best, best_seconds, in_vain = settings, seconds, 0
            else:
                in_vain += 1
            if field in ("workers", "prefetch") and in_vain == PATIENCE:
                break
    return Outcome(settings=best, tried=tried, complete=True)
