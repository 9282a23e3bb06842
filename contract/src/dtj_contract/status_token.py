"""HMAC-SHA256 and the bearer token of an agent's /status, without OpenSSL."""

from __future__ import annotations

from _operator import _compare_digest as same  # hmac.compare_digest without hmac

# hashlib loads OpenSSL, 4 MB of every agent's memory; the interpreter has SHA-256 of its own
# (random.py does the same).
try:
    from _sha2 import sha256  # type: ignore[import-not-found]  # Python 3.12 and later
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found]
    except ImportError:  # Python built without its own hashes
        from hashlib import sha256

LIFE_SECONDS = 600
"""How far the time of a token may be from the agent's clock, before and after it."""
CLOCK_HEADER = "DTJ-Time"
"""Of an answer 401: the agent's clock in Unix seconds, for a caller whose clock differs."""

_SCHEME = "Bearer "
_INNER = bytes(x ^ 0x36 for x in range(256))
_OUTER = bytes(x ^ 0x5C for x in range(256))


class Mac:
    """HMAC-SHA256 with one key (RFC 2104)."""

    def __init__(self, key: bytes) -> None:
        key = (sha256(key).digest() if len(key) > 64 else key).ljust(64, b"\0")
        self._inner, self._outer = sha256(key.translate(_INNER)), sha256(key.translate(_OUTER))

    def digest(self, data: bytes) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(data)
        outer.update(inner.digest())
        result: bytes = outer.digest()
        return result

    def hex(self, data: bytes) -> str:
        return self.digest(data).hex()


def status_token(secret: bytes, now: float, message: str = "") -> str:
    """Returns the bearer token of a request for /status: `<time>.<MAC>`.

    `now`: Unix seconds by the agent's clock. `message`: what the request hands over
    (operator_message), so that nobody who has read a token can hand over anything else.
    """
    time = "%d" % now
    return time + "." + Mac(secret).hex(("status\n%s\n%s" % (time, message)).encode())


def bearer_is_valid(secret: bytes, header: str, now: float, message: str = "") -> bool:
    """Returns whether `header`, the value of Authorization, holds a token of this job and this time."""
    time = header[len(_SCHEME) :].partition(".")[0]
    # The digits are bounded before they are read, because anybody may send a header.
    if not (time.isascii() and time.isdecimal() and len(time) <= 12) or abs(int(time) - now) > LIFE_SECONDS:
        return False
    return same(header.encode(), (_SCHEME + status_token(secret, int(time), message)).encode())


def lasting_token(secret: bytes) -> str:
    """Returns the token of agents before 0.2, which does not expire. Only the operator's past agents take it."""
    return Mac(secret).hex(b"status")
