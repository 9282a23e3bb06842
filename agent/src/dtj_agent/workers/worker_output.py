"""A worker's output: whole lines with the rank as prefix, and the tail that is kept as evidence. Pure."""

from __future__ import annotations

from dtj_contract import names


class WorkerOutput:
    """Turns the bytes of one worker into prefixed lines."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()
        self._rest = b""  # of a line that has not ended
        self._tail = b""

    def feed(self, data: bytes) -> bytes:
        """Returns whole lines, prefixed. The last line waits for its end, unless it exceeds MAX_LINE_BYTES."""
        self._tail = (self._tail + data)[-names.LOG_TAIL_BYTES :]
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        while len(self._rest) > names.MAX_LINE_BYTES:
            lines.append(self._rest[: names.MAX_LINE_BYTES])
            self._rest = self._rest[names.MAX_LINE_BYTES :]
        return b"".join([self._prefix + line + b"\n" for line in lines])

    def end(self) -> bytes:
        """Returns the rest of a last line that never ended."""
        rest, self._rest = self._rest, b""
        return self._prefix + rest + b"\n" if rest else b""

    @property
    def tail(self) -> str:
        """The last output, at most names.LOG_TAIL_BYTES of UTF-8, beginning with a whole line where there is one."""
        text = self._tail.decode("utf-8", "replace")
        if len(self._tail) == names.LOG_TAIL_BYTES and "\n" in text[:-1]:
            text = text.partition("\n")[2]
        return text.encode()[-names.LOG_TAIL_BYTES :].decode("utf-8", "ignore")
