"""Access to /metrics: for users whom the cluster's RBAC lets get that path, as with controller-runtime's filter.

Answers are kept for a while, and their number is bounded, because anybody may send any token.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from dtj_core.plan.model import Object
from dtj_operator import errors

PATH = "/metrics"
SCHEME = "Bearer "
ALLOWED, UNKNOWN, DENIED, UNDECIDED = 200, 401, 403, 503
KEPT_SECONDS = {ALLOWED: 60.0, UNKNOWN: 10.0, DENIED: 10.0}
"""By answer: how long a right that was taken away still holds, and one that was granted does not."""
MOST_KEPT = 256
MOST_WAITING = 16
"""Requests that wait for the API server at a time; more are undecided at once."""

logger = logging.getLogger(__name__)


class Reviews(Protocol):
    async def user(self, token: str) -> Object | None: ...

    async def may_get(self, user: Object, path: str) -> bool: ...


class MetricsAccess:
    """Decides by the value of Authorization. Tokens are kept as digests only."""

    def __init__(self, reviews: Reviews, now: Callable[[], float] = time.monotonic) -> None:
        self._reviews = reviews
        self._now = now
        self._kept: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        """By digest of the token: the answer, and when it expires."""
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._has_failed = False

    async def decide(self, authorization: str) -> int:
        """Returns the HTTP status of a request."""
        token = authorization.removeprefix(SCHEME).strip()
        if not authorization.startswith(SCHEME) or not token or not token.isascii():
            return UNKNOWN
        key = hashlib.sha256(token.encode()).digest()
        kept = self._known(key)
        if kept is not None:
            return kept
        if self._waiting >= MOST_WAITING:
            return UNDECIDED
        self._waiting += 1
        try:
            async with self._turn:  # of several requests with one token, the first one asks
                kept = self._known(key)
                return kept if kept is not None else await self._ask(key, token)
        finally:
            self._waiting -= 1

    def _known(self, key: bytes) -> int | None:
        answer, expires = self._kept.get(key, (UNDECIDED, 0.0))
        return answer if answer != UNDECIDED and self._now() < expires else None

    async def _ask(self, key: bytes, token: str) -> int:
        try:
            user = await self._reviews.user(token)
            allowed = user is not None and await self._reviews.may_get(user, PATH)
        except errors.KubeError as error:
            if not self._has_failed:
                logger.warning("nobody can read %s: the API server did not review a token: %s", PATH, error)
            self._has_failed = True
            return UNDECIDED
        self._has_failed = False
        answer = UNKNOWN if user is None else ALLOWED if allowed else DENIED
        self._kept.pop(key, None)
        self._kept[key] = (answer, self._now() + KEPT_SECONDS[answer])
        while len(self._kept) > MOST_KEPT:
            # A caller with many tokens must not push out the reader's.
            refused = (other for other, (status, _) in self._kept.items() if status != ALLOWED)
            del self._kept[next(refused, next(iter(self._kept)))]
        return answer
