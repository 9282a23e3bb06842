"""Texts that programs print and people write, and that are hard to encode."""

from __future__ import annotations

ANY_TEXT = {
    "ASCII": "loss 0.31\n\tdone",
    "an emoji": "\U0001f917 Transformers",
    "the last character": "\U0010ffff",
    "DEL": "back\x7fspace",
    "a C1 control": "next\x85line \x9b31m",
    "a colour code": "\x1b[31mred\x1b[0m",
    "NUL": "a\x00b",
    "U+FFFE": "\ufffe and \uffff",
    "a byte order mark": "\ufeffa",
    "line separators": "a\u2028b\u2029c\r\n",
    "a lone high surrogate": "a\ud83eb",
    "a lone low surrogate": "a\udd17b",
    "a pair in two halves": "\ud83e\udd17",
    "a backslash before": "\\ud83e \\\U0001f917 \\u0041",
    "YAML": "- a: {b: [*c, &d 'e\": #f %g @h `i | > !j",
}


def as_stored(text: str) -> str:
    """Returns `text` as the API server stores it: surrogate pairs joined, lone halves replaced by
    U+FFFD.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
