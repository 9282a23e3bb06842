"""The keys of one attempt's rendezvous store, and the protocol of torch.distributed.TCPStore that reaches them. Pure.

The ranks of Horovod reach the same store by HTTP (`http_requests.py`): the first byte of a connection decides.

A request is one byte of kind and its arguments. Numbers are little endian; a text or value is
preceded by its length (8 bytes). Semantics are those of torch 2.13's libuv server, which is what
torchrun's agent runs.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Deque, Dict, Generator, List, Optional, Set

from dtj_agent.store import http_requests

MAGIC = 0x3C85F7CE
MAX_KEY_BYTES = 1024 * 1024  # torch rejects keys above 8 KiB
MAX_VALUE_BYTES = 256 * 1024 * 1024  # torch rejects values above 8 MiB
MAX_KEYS = 128 * 1024
READY, NOT_READY = b"\0", b"\1"
STOP_WAITING, WAIT_CANCELED = b"\0", b"\1"
(
    VALIDATE, SET, COMPARE_SET, GET, ADD, CHECK, WAIT, COUNT, DELETE, APPEND, MULTI_GET, MULTI_SET, CANCEL_WAIT, PING,
    QUEUE_PUSH, QUEUE_POP, QUEUE_LENGTH, LIST_KEYS, BARRIER,
) = range(19)  # fmt: skip

Parser = Generator[int, bytes, None]
"""Yields how many bytes it needs next, and is sent exactly those."""


class ProtocolError(Exception):
    """A client sent bytes that no client of the store sends; its connection must be closed."""


class StoreClient:
    """One connection: `feed` takes the received bytes, `out` holds the bytes to send."""

    def __init__(self, store: KeyStore) -> None:
        self.out = bytearray()
        self._buffer = bytearray()
        self._parser = store.converse(self)
        self._needs = next(self._parser)

    def feed(self, data: bytes) -> None:
        """Carries out every request that is complete. Raises ProtocolError."""
        self._buffer += data
        while len(self._buffer) >= self._needs:
            part = bytes(self._buffer[: self._needs])
            del self._buffer[: self._needs]
            self._needs = self._parser.send(part)


class KeyStore:
    """The values, queues and waiting clients of one attempt.

    `woken` holds the clients that another client's request has answered; the server sends to them
    and empties it.
    """

    def __init__(self) -> None:
        self.woken: Set[StoreClient] = set()
        self._values: Dict[bytes, bytes] = {}
        self._paths: Dict[bytes, bytes] = {}  # values that were put by HTTP
        self._queues: Dict[bytes, Deque[bytes]] = {}
        self._waiting: Dict[bytes, List[StoreClient]] = {}  # by key, in the order of requests
        self._awaited: Dict[StoreClient, Set[bytes]] = {}

    def forget(self, client: StoreClient) -> None:
        """Removes a client from every wait, because it has cancelled or its connection has ended."""
        for key in self._awaited.pop(client, ()):
            self._unwait(key, client)
        self.woken.discard(client)

    def converse(self, client: StoreClient) -> Parser:
        """Parses the requests of one connection and answers them. Raises ProtocolError."""
        first = yield 1
        if first[0] in http_requests.FIRST_BYTES:
            try:
                yield from http_requests.converse(first, self._paths, client.out)
            except http_requests.BadRequest as error:
                raise ProtocolError(str(error)) from None
        if first[0] != VALIDATE or _uint32((yield 4)) != MAGIC:
            raise ProtocolError("not a client of torch.distributed.TCPStore")
        handlers = {
            SET: self._set, COMPARE_SET: self._compare_set, GET: self._get, ADD: self._add, CHECK: self._check,
            WAIT: self._wait, COUNT: self._count, DELETE: self._delete, APPEND: self._append,
            MULTI_GET: self._multi_get, MULTI_SET: self._multi_set, CANCEL_WAIT: self._cancel_wait, PING: self._ping,
            QUEUE_PUSH: self._queue_push, QUEUE_POP: self._queue_pop, QUEUE_LENGTH: self._queue_length,
            LIST_KEYS: self._list_keys, BARRIER: self._barrier,
        }  # fmt: skip
        while True:
            kind = (yield 1)[0]
            if kind not in handlers:
                raise ProtocolError("unknown request %d" % kind)
            yield from handlers[kind](client)

    # --- values -----------------------------------------------------------------------------------

    def _set(self, client: StoreClient) -> Parser:
        key = yield from _key()
        self._values[key] = yield from _value()
        self._wake(key)

    def _compare_set(self, client: StoreClient) -> Parser:
        key, expected, desired = (yield from _key()), (yield from _value()), (yield from _value())
        present = self._values.get(key)
        if present is None and expected:
            # As in torch: the caller can't distinguish an absent key from an equal one.
            client.out += _framed(expected)
        else:
            if present is None or present == expected:
                self._values[key] = desired
            client.out += _framed(self._values[key])
        self._wake(key)

    def _get(self, client: StoreClient) -> Parser:
        client.out += _framed(self._values.get((yield from _key()), b""))

    def _add(self, client: StoreClient) -> Parser:
        key = yield from _key()
        amount = _int64((yield 8))
        client.out += struct.pack("<q", self._increment(key, amount))
        self._wake(key)

    def _count(self, client: StoreClient) -> Parser:
        client.out += struct.pack("<q", len(self._values))
        yield from ()

    def _delete(self, client: StoreClient) -> Parser:
        found = self._values.pop((yield from _key()), None)
        client.out += struct.pack("<q", 0 if found is None else 1)

    def _append(self, client: StoreClient) -> Parser:
        key = yield from _key()
        self._values[key] = self._values.get(key, b"") + (yield from _value())
        self._wake(key)

    def _multi_get(self, client: StoreClient) -> Parser:
        keys = yield from _keys()
        for key in keys:
            client.out += _framed(self._values.get(key, b""))

    def _multi_set(self, client: StoreClient) -> Parser:
        for _ in range(_length((yield 8), MAX_KEYS)):
            yield from self._set(client)

    def _list_keys(self, client: StoreClient) -> Parser:
        client.out += struct.pack("<q", len(self._values)) + b"".join(_framed(key) for key in self._values)
        yield from ()

    def _ping(self, client: StoreClient) -> Parser:
        client.out += yield 4

    # --- waiting ----------------------------------------------------------------------------------

    def _check(self, client: StoreClient) -> Parser:
        keys = yield from _keys()
        client.out += READY if all(self._is_there(key) for key in keys) else NOT_READY

    def _wait(self, client: StoreClient) -> Parser:
        keys = yield from _keys()
        missing = {key for key in keys if not self._is_there(key)}
        if missing:
            self._await(client, missing)
        else:
            client.out += STOP_WAITING

    def _cancel_wait(self, client: StoreClient) -> Parser:
        self.forget(client)
        client.out += WAIT_CANCELED
        yield from ()

    def _barrier(self, client: StoreClient) -> Parser:
        key = yield from _key()
        world = _int64((yield 8))
        if self._increment(key, 1) >= world:
            self._wake(key)
            client.out += STOP_WAITING
        else:
            self._await(client, {key})

    def _await(self, client: StoreClient, keys: Set[bytes]) -> None:
        self.forget(client)
        self._awaited[client] = set(keys)
        for key in keys:
            self._waiting.setdefault(key, []).append(client)

    def _wake(self, key: bytes, most: Optional[int] = None) -> None:
        """Answers the clients that waited for this key alone, or for this key as the last of several."""
        for client in self._waiting.get(key, [])[:most]:
            self._unwait(key, client)
            self._awaited[client].discard(key)
            if not self._awaited[client]:
                del self._awaited[client]
                client.out += STOP_WAITING
                self.woken.add(client)

    def _unwait(self, key: bytes, client: StoreClient) -> None:
        self._waiting[key].remove(client)
        if not self._waiting[key]:
            del self._waiting[key]

    def _is_there(self, key: bytes) -> bool:
        return key in self._values or bool(self._queues.get(key))

    def _increment(self, key: bytes, amount: int) -> int:
        try:
            total = amount + int(self._values.get(key, b"0"))
        except ValueError:
            raise ProtocolError("ADD to a value that is no number") from None
        total = (total + 2**63) % 2**64 - 2**63
        self._values[key] = b"%d" % total
        return total

    # --- queues -----------------------------------------------------------------------------------

    def _queue_push(self, client: StoreClient) -> Parser:
        key = yield from _key()
        self._queues.setdefault(key, deque()).append((yield from _value()))
        self._wake(key, most=1)

    def _queue_pop(self, client: StoreClient) -> Parser:
        key = yield from _key()
        queue = self._queues.get(key)
        client.out += struct.pack("<q", len(queue) if queue else 0)
        if queue:
            client.out += _framed(queue.popleft())
            if not queue:
                del self._queues[key]

    def _queue_length(self, client: StoreClient) -> Parser:
        client.out += struct.pack("<q", len(self._queues.get((yield from _key()), ())))


def _framed(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def _uint32(data: bytes) -> int:
    return int(struct.unpack("<I", data)[0])


def _int64(data: bytes) -> int:
    return int(struct.unpack("<q", data)[0])


def _length(data: bytes, limit: int) -> int:
    length = int(struct.unpack("<Q", data)[0])
    if length > limit:
        raise ProtocolError("a length of %d" % length)
    return length


def _key() -> Generator[int, bytes, bytes]:
    return (yield _length((yield 8), MAX_KEY_BYTES))


def _value() -> Generator[int, bytes, bytes]:
    return (yield _length((yield 8), MAX_VALUE_BYTES))


def _keys() -> Generator[int, bytes, List[bytes]]:
    keys = []
    for _ in range(_length((yield 8), MAX_KEYS)):
        keys.append((yield from _key()))
    return keys
