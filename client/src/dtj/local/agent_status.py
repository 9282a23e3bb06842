"""Asking an agent on this machine for its /status (docs/reference/contract.md)."""

from __future__ import annotations

import asyncio
import http.client
import json
from typing import Any

from dtj.local.container import LOOPBACK
from dtj_contract.status_token import status_token

TIMEOUT_SECONDS = 2.0


async def status(port: int, key: str) -> dict[str, Any] | None:
    """`/status` of the agent on this loopback port; None while nobody answers there."""
    return await asyncio.to_thread(_get, port, key)


def _get(port: int, key: str) -> dict[str, Any] | None:
    token = status_token(key.encode())
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/status", headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            return None
        answer = json.loads(body)
    except (OSError, http.client.HTTPException, json.JSONDecodeError):
        return None  # starting, stopping, or killed between two bytes: the next look tells
    finally:
        connection.close()
    return answer if isinstance(answer, dict) else None
