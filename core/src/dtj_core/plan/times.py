"""Conversion of Unix seconds to and from Kubernetes' form (RFC 3339, UTC, whole seconds)."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(seconds: float) -> str:
    # isoformat takes a tenth of the time of strftime.
    return datetime.fromtimestamp(int(seconds), UTC).isoformat().removesuffix("+00:00") + "Z"


def unix(text: object) -> float | None:
    """Returns Unix seconds, None if `text` is not such a time."""
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
