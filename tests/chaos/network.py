"""The network between the agents of a group: a proxy in front of each, which can drop, delay and reset.

An agent listens on an address of its own, and announces the address of its proxy, so that every
call of another agent passes a proxy. The proxy knows the caller by the process that owns the
connection. The workers' own connections do not pass: a partition is one between agents.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

from tests.lib.ports import free_port

CHUNK = 65536
ABORT = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset


def inner(ordinal: int, life: int) -> str:
    """Returns the address on which an agent listens; each life of a pod has another."""
    return f"127.{100 + life % 100}.1.{ordinal + 1}"


def outer(ordinal: int, life: int) -> str:
    """Returns the address by which others reach an agent: its proxy's."""
    return f"127.{100 + life % 100}.2.{ordinal + 1}"


def caller(port: int, pids: dict[int, int]) -> int | None:
    """Returns the ordinal of the agent that owns the connection from this local port."""
    pattern = re.compile(rf"^\s*\d+: [0-9A-F]{{8}}:{port:04X} \S+ \S+ \S+ \S+ \S+ +\d+ +\d+ (\d+)", re.MULTILINE)
    found = pattern.search(Path("/proc/net/tcp").read_text())
    for ordinal, pid in pids.items() if found and found[1] != "0" else ():
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(link) == f"socket:[{found[1]}]":
                        return ordinal
    return None


class Network:
    """Proxies in a thread of their own.

    `pids` returns the agents' processes by ordinal.
    """

    def __init__(self, pids: Callable[[], dict[int, int]]) -> None:
        self.port = free_port()
        self._pids = pids
        self._cut: set[frozenset[int]] = set()
        self._delay = 0.0
        self._pairs: dict[asyncio.Task[None], tuple[int | None, int, asyncio.StreamWriter]] = {}
        self._servers: dict[tuple[int, int], asyncio.Server] = {}
        self._loop = asyncio.new_event_loop()
        self._healed = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-network", daemon=True)
        self._thread.start()

    def open(self, ordinal: int, life: int) -> None:
        """Begins to forward to this life of an agent, and closes the proxy of the life before."""

        async def serve() -> None:
            for key in [key for key in self._servers if key[0] == ordinal and key[1] != life]:
                self._servers.pop(key).close()
            if (ordinal, life) in self._servers:
                return

            async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await self._forward(ordinal, life, reader, writer)

            self._servers[ordinal, life] = await asyncio.start_server(forward, outer(ordinal, life), self.port)

        self._do(serve)

    def cut(self, *pairs: tuple[int, int]) -> None:
        """Drops everything between these agents, without a reset, until `heal`. New calls are not answered."""
        self._cut |= {frozenset(pair) for pair in pairs}

    def isolate(self, ordinal: int, replicas: int) -> None:
        """Drops everything between one agent and all others."""
        self.cut(*((ordinal, other) for other in range(replicas) if other != ordinal))

    def delay(self, seconds: float) -> None:
        """Delays each chunk of bytes from now on, in both directions."""
        self._delay = seconds

    def heal(self) -> None:
        """Ends all cuts and delays, and delivers the bytes that were sent meanwhile, as TCP would."""

        async def heal() -> None:
            self._cut.clear()
            self._delay = 0.0
            self._healed.set()
            self._healed = asyncio.Event()

        self._do(heal)

    def reset(self, ordinal: int) -> None:
        """Resets all connections of one agent, in both directions."""

        async def reset() -> None:
            for task, (source, target, writer) in list(self._pairs.items()):
                if ordinal in (source, target):
                    sock = writer.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
                    task.cancel()

        self._do(reset)

    def close(self) -> None:
        """Closes all sockets, and ends the thread."""

        async def close() -> None:
            for server in self._servers.values():
                server.close()
            for task in list(self._pairs):
                task.cancel()
            await asyncio.gather(*self._pairs, return_exceptions=True)

        self._do(close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    def _do(self, what: Callable[[], object]) -> None:
        asyncio.run_coroutine_threadsafe(what(), self._loop).result(30)

    async def _forward(
        self, target: int, life: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        source = caller(writer.get_extra_info("peername")[1], self._pids())
        self._pairs[task] = (source, target, writer)
        onward: asyncio.StreamWriter | None = None
        try:
            pair = frozenset((target, -1 if source is None else source))
            await self._pass(pair)
            back, onward = await asyncio.open_connection(inner(target, life), self.port)
            ways = [self._pump(pair, reader, onward), self._pump(pair, back, writer)]
            done, waiting = await asyncio.wait(
                [asyncio.ensure_future(way) for way in ways], return_when=asyncio.FIRST_COMPLETED
            )
            for way in waiting:
                way.cancel()
            await asyncio.gather(*done, *waiting, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._pairs.pop(task, None)
            for each in (writer, onward):
                if each is not None:
                    each.close()

    async def _pump(self, pair: frozenset[int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            await self._pass(pair)
            if self._delay:
                await asyncio.sleep(self._delay)
            writer.write(data)
            await writer.drain()

    async def _pass(self, pair: frozenset[int]) -> None:
        while pair in self._cut:
            await self._healed.wait()
