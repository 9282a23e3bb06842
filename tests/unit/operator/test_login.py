"""Logging in has a deadline, too."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from kubernetes.aio.client.configuration import Configuration

from dtj_core.plan.model import Plan
from dtj_operator import errors
from dtj_operator.kube.client import Client
from dtj_operator.kube.resources import JOB
from tests.unit.operator.fakes import job
from tests.unit.operator.test_controller import Shell

IMPATIENT = """
import sys
from dtj_operator import app
from dtj_operator.kube import login
login.LOGIN_SECONDS = 0.3
sys.exit(app.main())
"""


def test_silent_login_plugin_ends_the_operator_with_an_error(tmp_path: Path) -> None:
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "sleep",
        "args": ["2"],
        "interactiveMode": "Never",
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"exec": plugin}}],
    }
    kubeconfig, key = tmp_path / "kubeconfig", tmp_path / "key"
    kubeconfig.write_text(json.dumps(config))
    key.write_text("k" * 32)
    flags = ["--agent-image", "i", "--master-key-file", str(key), "--kubeconfig", str(kubeconfig)]
    done = subprocess.run(
        [sys.executable, "-c", IMPATIENT, *flags], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "no way to log in to the API server: no answer in 0.3 s" in done.stderr


class ExpiredLogin:
    """A login that was valid once and can't be renewed, because its exec plugin fails."""

    def __init__(self) -> None:
        self.configuration = Configuration(host="http://127.0.0.1:1")

    async def load(self) -> None:
        raise errors.OptionError("no way to log in to the API server: exec plugin ended with 1")


class Refusing(Client):
    """A client whose API server answers 401 to every request."""

    def __init__(self) -> None:
        super().__init__(ExpiredLogin(), lambda *_: None)  # type: ignore[arg-type]
        self.objects = {("distributedtrainingjobs", "j"): job()}

        async def call_api(*_: Any, **__: Any) -> Any:
            answer = Mock(status=401)
            answer.read = AsyncMock(return_value=b'{"message": "Unauthorized"}')
            return answer

        self._api.call_api = call_api  # type: ignore[method-assign]


def test_failed_login_renewal_is_an_api_error_and_no_bug() -> None:
    async def main() -> None:
        client = Refusing()
        try:
            with pytest.raises(
                errors.NotAuthenticated, match=r"Unauthorized.*could not be renewed.*exec plugin ended with 1"
            ):
                await client.get(JOB, "ns", "j")
        finally:
            await client.close()

    asyncio.run(main())


def test_reconcile_with_a_failed_login_renewal_counts_as_error_and_is_retried() -> None:
    async def main() -> None:
        client = Refusing()
        shell = Shell(client, lambda *_: Plan(status={"phase": "Pending"}))  # type: ignore[arg-type]
        try:
            await shell.until(lambda: shell.results().get("error", 0) >= 2)
            assert set(shell.results()) == {"error"}
        finally:
            await client.close()

    asyncio.run(main())
