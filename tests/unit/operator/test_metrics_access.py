"""Access to /metrics: what is asked of the API server, what is kept, and for how long; and TLS."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dtj_operator import errors, settings
from dtj_operator.health import Certificate, HealthServer
from dtj_operator.metrics_access import KEPT_SECONDS, MOST_KEPT, MOST_WAITING, MetricsAccess


class Reviews:
    """An API server that knows `reader` and `stranger`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails = False
        self.readers = {"reader"}
        self.gate = asyncio.Event()
        self.gate.set()

    async def user(self, token: str) -> Any:
        self.asked.append(token)
        await self.gate.wait()
        if self.fails:
            raise errors.Transient("no connection")
        return {"username": token} if token in ("reader", "stranger") else None

    async def may_get(self, user: Any, path: str) -> bool:
        assert path == "/metrics"
        return user["username"] in self.readers


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def decided(test: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            clock, reviews = Clock(), Reviews()
            await test(MetricsAccess(reviews, clock), reviews, clock)

    asyncio.run(main())


def test_status_is_that_of_the_token_and_its_user() -> None:
    async def test(access: MetricsAccess, reviews: Reviews, clock: Clock) -> None:
        for header, status in {
            "": 401, "Basic reader": 401, "Bearer ": 401, "bearer reader": 401, "Bearer x": 401, "Bearer stranger": 403,
            "Bearer reader": 200, "Bearer \udcff": 401, "Bearer re\u0301ader": 401,
        }.items():  # fmt: skip
            assert await access.decide(header) == status, header
        assert reviews.asked == ["x", "stranger", "reader"], "a request without a token asks nobody"

    decided(test)


def test_answers_expire_and_a_failure_is_not_kept() -> None:
    async def test(access: MetricsAccess, reviews: Reviews, clock: Clock) -> None:
        reviews.fails = True
        assert await access.decide("Bearer reader") == 503
        reviews.fails = False
        assert await access.decide("Bearer reader") == 200
        reviews.readers.clear()
        clock.now = KEPT_SECONDS[200] - 0.1
        assert await access.decide("Bearer reader") == 200
        clock.now = KEPT_SECONDS[200]
        assert await access.decide("Bearer reader") == 403
        reviews.readers.add("reader")
        clock.now += KEPT_SECONDS[403]
        assert await access.decide("Bearer reader") == 200

    decided(test)


def test_flood_of_tokens_is_bounded_in_memory_and_in_requests() -> None:
    async def test(access: MetricsAccess, reviews: Reviews, clock: Clock) -> None:
        for number in range(MOST_KEPT + 50):
            assert await access.decide(f"Bearer {number}") == 401
        assert len(access._kept) == MOST_KEPT
        reviews.gate.clear()
        flood = [asyncio.create_task(access.decide(f"Bearer new {n}")) for n in range(MOST_WAITING)]
        await asyncio.sleep(0)
        assert await access.decide("Bearer reader") == 503, "at once"
        reviews.gate.set()
        assert set(await asyncio.gather(*flood)) == {401}

    decided(test)


def test_reader_is_not_forgotten_for_a_flood_of_tokens() -> None:
    async def test(access: MetricsAccess, reviews: Reviews, clock: Clock) -> None:
        assert await access.decide("Bearer reader") == 200
        for number in range(MOST_KEPT + 50):
            await access.decide(f"Bearer {number}")
        reviews.fails = True
        assert await access.decide("Bearer reader") == 200

    decided(test)


def test_requests_with_one_token_ask_once() -> None:
    async def test(access: MetricsAccess, reviews: Reviews, clock: Clock) -> None:
        assert set(await asyncio.gather(*(access.decide("Bearer reader") for _ in range(5)))) == {200}
        assert reviews.asked == ["reader"]

    decided(test)


def make_certificate(folder: Path, name: str) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    command += ["-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


async def get(port: int, name: str, folder: Path) -> int:
    context = ssl.create_default_context(cafile=str(folder / "tls.crt"))
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"https://127.0.0.1:{port}/metrics", ssl=context, server_hostname=name) as response,
    ):
        return response.status


async def probe(port: int, path: str) -> int:
    """Asks as the kubelet does, which checks no certificate."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"https://127.0.0.1:{port}{path}", ssl=False) as response,
    ):
        return response.status


@pytest.mark.parametrize("path", ["/metrics", "/healthz"])
def test_port_speaks_https_and_takes_a_renewed_certificate(tmp_path: Path, path: str) -> None:
    """Nobody who checks certificates gets through once the old one has expired, so a probe renews it, too."""
    make_certificate(tmp_path, "one.svc")

    async def main() -> None:
        server = HealthServer(0, lambda: b"", (), (), None, Certificate(tmp_path))
        await server.start()
        try:
            assert await get(server.port, "one.svc", tmp_path) == 200
            before = (tmp_path / "tls.crt").read_bytes()
            make_certificate(tmp_path, "two.svc")
            assert (tmp_path / "tls.crt").read_bytes() != before
            with pytest.raises(aiohttp.ClientError):  # the first connection after the renewal
                await get(server.port, "two.svc", tmp_path)
            await probe(server.port, path)
            assert await get(server.port, "two.svc", tmp_path) == 200
        finally:
            await server.stop()

    asyncio.run(main())


def test_half_renewed_certificate_is_not_taken(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder, name in ((old, "one.svc"), (new, "two.svc")):
        folder.mkdir()
        make_certificate(folder, name)
    trusted = tmp_path / "trusted"
    shutil.copytree(old, trusted)

    async def main() -> None:
        server = HealthServer(0, lambda: b"", (), (), None, Certificate(old))
        await server.start()
        try:
            shutil.copy(new / "tls.crt", old)
            assert await probe(server.port, "/metrics") == 200
            assert await get(server.port, "one.svc", trusted) == 200, "certificate and key of two pairs"
            shutil.copy(new / "tls.key", old)
            assert await probe(server.port, "/metrics") == 200
            assert await get(server.port, "two.svc", new) == 200
        finally:
            await server.stop()

    asyncio.run(main())


def test_missing_certificate_is_an_error_of_the_option(tmp_path: Path) -> None:
    server = HealthServer(0, lambda: b"", (), (), None, Certificate(tmp_path))
    with pytest.raises(errors.OptionError, match=r"--metrics-cert-dir: .*must hold tls\.crt and tls\.key"):
        asyncio.run(server.start())


def test_tokens_in_plain_http_are_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"k" * 32)
    flags = ["--agent-image=i", f"--master-key-file={tmp_path / 'key'}", "--metrics-auth=kubernetes"]
    with pytest.raises(errors.OptionError, match="--metrics-cert-dir is missing"):
        settings.parse(flags, environ={})
    assert settings.parse([*flags, "--metrics-cert-dir=/x"], environ={}).metrics_auth
