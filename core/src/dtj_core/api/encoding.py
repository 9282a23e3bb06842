"""Encodes the body of a server-side apply, so that the API server accepts any text in it."""

from __future__ import annotations

import json
import re
from typing import Any

APPLY_CONTENT = "application/apply-patch+yaml; charset=utf-8"
"""Content type of such a body. The kubernetes library would encode a body of the bare type once
more; the API server ignores the part after the semicolon."""

# An escape sequence of JSON. A surrogate pair is matched as one; so is an escaped backslash.
_ESCAPE = re.compile(r"\\(?:u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})|u(d[89a-f][0-9a-f]{2})|.)")


def apply_body(obj: Any) -> bytes:
    """Returns `obj` as YAML, in ASCII.

    The API server reads the body of an apply as YAML, which is not a superset of JSON: one
    surrogate escape makes it reject the whole request. A character beyond U+FFFF gets YAML's own
    escape, and half of a pair, which is not text, becomes U+FFFD. Everything else stays escaped as
    in JSON, because YAML rejects unescaped DEL, C1 controls and U+FFFE.
    """
    return _ESCAPE.sub(_for_yaml, json.dumps(obj)).encode("ascii")


def _for_yaml(escape: re.Match[str]) -> str:
    high, low, alone = escape.groups()
    if alone:
        return r"\ufffd"
    if not high:
        return escape[0]
    return f"\\U{0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00:08x}"
