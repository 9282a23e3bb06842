"""When an agent is asked again: the back-off of silent agents, and the pace of those that answer too often. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Uniform = Callable[[float, float], float]

FIRST_RETRY_SECONDS = 0.25
LAST_RETRY_SECONDS = 60.0
# Of a pause, at most, so that agents that fall silent together are not asked together for ever.
JITTER = 0.25
# Answers that one job's agent may send in a row, and the time to earn one more: a pod decides how often it answers.
ANSWER_BURST = 10.0
ANSWER_SECONDS = 1.0


def retry_seconds(silent: float) -> float:
    """Returns the pause before an agent that has been `silent` for so many seconds is asked again.

    The pause is half of the silence, within bounds.
    """
    return min(max(FIRST_RETRY_SECONDS, silent / 2), LAST_RETRY_SECONDS)


def with_jitter(seconds: float, uniform: Uniform) -> float:
    """Returns a pause of up to a quarter more."""
    return seconds * uniform(1.0, 1.0 + JITTER)


@dataclass
class Pace:
    """Bounds the answers of one job's agents by a token bucket."""

    tokens: float = ANSWER_BURST
    counted: float = float("-inf")
    """When `tokens` was computed."""

    def pause(self, now: float) -> float:
        """Takes a token. Returns the seconds to wait before the next request."""
        self.tokens = min(ANSWER_BURST, self.tokens + (now - self.counted) / ANSWER_SECONDS)
        self.counted = now
        self.tokens -= 1.0
        return max(0.0, -self.tokens * ANSWER_SECONDS)
