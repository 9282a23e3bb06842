"""The body of a server-side apply, such that the API server takes any text in it."""

from __future__ import annotations

import json
import re
from typing import Any

APPLY_CONTENT = "application/apply-patch+yaml; charset=utf-8"
"""The content type to send it with. The kubernetes library would encode a body of the bare type once more; the API server
ignores what follows the semicolon."""

# An escape of JSON. The halves of a surrogate pair stand together; an escaped backslash is an escape of its own.
_ESCAPE = re.compile(r"\\(?:u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})|u(d[89a-f][0-9a-f]{2})|.)")


def apply_body(obj: Any) -> bytes:
    """Returns `obj` as YAML, in ASCII.

    The API server reads the body of an apply as YAML, which is no superset of JSON: it refuses the whole request for one
    surrogate escape. A character beyond U+FFFF gets YAML's own escape, and half of a pair, which is no text, becomes U+FFFD.
    Everything else stays escaped as in JSON: unescaped, YAML refuses DEL, the C1 controls and U+FFFE.
    """
    return _ESCAPE.sub(_for_yaml, json.dumps(obj)).encode("ascii")


def _for_yaml(escape: re.Match[str]) -> str:
    high, low, alone = escape.groups()
    if alone:
        return r"\ufffd"
    if not high:
        return escape[0]
    return f"\\U{0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00:08x}"
