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


def status_token(secret: bytes) -> str:
    """Returns the bearer token of /status."""
    return Mac(secret).hex(b"status")


def bearer_is_valid(secret: bytes, header: str) -> bool:
    """Returns whether `header`, the value of Authorization, holds the job's token."""
    return same(header.encode(), b"Bearer " + status_token(secret).encode())
