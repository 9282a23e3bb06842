"""One way to wait for a condition: poll it until a generous deadline, then fail with what was seen last."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

TIMEOUT = 90.0
"""Seconds. A busy machine takes a few of them for work that an idle one finishes at once."""


def wait_until(
    what: str,
    condition: Callable[[], T],
    *,
    timeout: float = TIMEOUT,
    every: float = 0.02,
    retry: tuple[type[Exception], ...] = (),
    detail: Callable[[], object] | None = None,
) -> T:
    """Returns the first truthy value of `condition`.

    Raises AssertionError after `timeout` seconds, with `what`, the last value or exception, and `detail()`.
    An exception of a type in `retry` counts as a condition that is not met yet.
    """
    deadline = time.monotonic() + timeout
    while True:
        last: object
        try:
            if value := condition():
                return value
            last = value
        except retry as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(_message(what, timeout, last) + (f"\n{detail()}" if detail else ""))
        time.sleep(every)


async def wait_until_async(
    what: str, condition: Callable[[], T], *, timeout: float = TIMEOUT, every: float = 0.005
) -> T:
    """Returns the first truthy value of `condition`, like `wait_until`, while the event loop runs."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(_message(what, timeout, value))
        await asyncio.sleep(every)
    return value


def _message(what: str, timeout: float, last: object) -> str:
    return f"not within {timeout:g} s: {what}; last: {last!r}"
