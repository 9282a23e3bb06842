"""/metrics, /healthz and /readyz: for Prometheus and the kubelet."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from dtj_operator.errors import OptionError

logger = logging.getLogger(__name__)

Check = Callable[[], str | None]
"""Returns what is wrong, or None."""


class Certificate:
    """The certificate in a folder, as the kubelet mounts a Secret of type kubernetes.io/tls."""

    def __init__(self, folder: Path) -> None:
        self._files = (folder / "tls.crt", folder / "tls.key")
        self.context = _server_context()
        self._loaded: object = None

    def load(self) -> None:
        """Loads the files if they have changed. Raises OSError (ssl.SSLError is one)."""
        versions = [path.stat().st_mtime_ns for path in self._files]
        if versions != self._loaded:
            # A key of another certificate would leave the context that serves without any.
            _server_context().load_cert_chain(*self._files)
            self.context.load_cert_chain(*self._files)
            self._loaded = versions


def _server_context() -> ssl.SSLContext:
    return ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)


class HealthServer:
    """Serves from `start` to `stop`. After `start`, `port` is the port that was bound."""

    def __init__(
        self,
        port: int,
        metrics: Callable[[], bytes],
        alive: Sequence[Check],
        ready: Sequence[Check],
        access: Callable[[str], Awaitable[int]] | None = None,
        certificate: Certificate | None = None,
    ) -> None:
        """`access` returns the HTTP status for a value of Authorization; None: everybody may read /metrics."""
        self.port = port
        self._access = access
        self._certificate = certificate
        self._metrics = metrics
        self._alive = alive
        self._ready = ready
        self._runner: web.AppRunner | None = None
        self._complaint = ""

    async def start(self) -> None:
        """Binds the port and serves. Raises OSError if the port is taken, OptionError without a certificate."""
        if self._certificate is not None:
            try:
                self._certificate.load()
            except OSError as error:
                raise OptionError(f"--metrics-cert-dir: {error}; it must hold tls.crt and tls.key") from error
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
        context = None if self._certificate is None else self._certificate.context
        site = web.TCPSite(self._runner, host, self.port, ssl_context=context)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _get_metrics(self, request: web.Request) -> web.Response:
        self._renew_certificate()
        status = 200 if self._access is None else await self._access(request.headers.get("Authorization", ""))
        if status != 200:
            headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
            return web.Response(status=status, headers=headers)
        return web.Response(body=self._metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _renew_certificate(self) -> None:
        """Loads a renewed certificate for the connections that follow.

        Called for probes, too: they alone get through when the old certificate has expired.
        """
        if self._certificate is None:
            return
        complaint = ""
        try:
            self._certificate.load()
        except OSError as error:
            complaint = str(error)
        if complaint and complaint != self._complaint:
            logger.warning("the certificate of /metrics can't be renewed: %s", complaint)
        self._complaint = complaint

    async def _answer(self, checks: Sequence[Check]) -> web.Response:
        self._renew_certificate()
        wrong = [problem for problem in (check() for check in checks) if problem is not None]
        return web.Response(text="; ".join(wrong or ["ok"]) + "\n", status=503 if wrong else 200)
