"""/metrics, /healthz and /readyz: for Prometheus and the kubelet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

Check = Callable[[], str | None]
"""Returns what is wrong, or None."""


class HealthServer:
    """Serves from `start` to `stop`. After `start`, `port` is the port that was bound."""

    def __init__(self, port: int, metrics: Callable[[], bytes], alive: Sequence[Check], ready: Sequence[Check]) -> None:
        self.port = port
        self._metrics = metrics
        self._alive = alive
        self._ready = ready
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Binds the port and serves. Raises OSError if the port is taken."""
        app = web.Application()
        app.router.add_get("/metrics", self._get_metrics)
        app.router.add_get("/healthz", lambda _: self._answer(self._alive))
        app.router.add_get("/readyz", lambda _: self._answer(self._ready))
        # The main program handles the signals.
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        # Bind all addresses, IPv4 and IPv6. Port 0 is for developers, and binds loopback only,
        # because each address family would get another free port.
        host = None if self.port else "127.0.0.1"
        site = web.TCPSite(self._runner, host, self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _get_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _answer(self, checks: Sequence[Check]) -> web.Response:
        wrong = [problem for problem in (check() for check in checks) if problem is not None]
        return web.Response(text="; ".join(wrong or ["ok"]) + "\n", status=503 if wrong else 200)
