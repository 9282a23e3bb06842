"""Asking a job's agent how it goes: `GET /status` of pod 0."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
from dataclasses import replace

import aiohttp

from dtj_agent import names
from dtj_operator.plan.children import agent_key
from dtj_operator.plan.model import Object, Settings

STATUS_SECONDS = 1.0
STATUS_BYTES = 256 * 1024
CONCURRENCY = 100

logger = logging.getLogger(__name__)


def bearer(key: str) -> str:
    """What a reader of `/status` has to show."""
    return hmac.new(key.encode(), b"status", hashlib.sha256).hexdigest()


class AgentClient:
    """One connection pool for all agents. Make it on the event loop that uses it."""

    def __init__(self, settings: Settings, *, seconds: float = STATUS_SECONDS) -> None:
        self._settings = settings
        self._with_previous: set[str] = set()
        """Uids of jobs whose agents have refused the present key: they were started before it was replaced."""
        # Pods come and go with their addresses: a kept connection would rarely be of use, and holds a descriptor.
        connector = aiohttp.TCPConnector(limit=CONCURRENCY, force_close=True)
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=seconds))

    async def close(self) -> None:
        await self._session.close()

    async def status(self, job: Object, pod: Object) -> Object | None:
        """The agent's word, None if it could not be had: it starts, it ends, its node is gone. The planner lives without."""
        address = pod["status"]["podIP"]
        uid = job["metadata"]["uid"]
        url = f"http://{'[' + address + ']' if ':' in address else address}:{self._settings.agent_port}/status"
        headers = {"Authorization": "Bearer " + bearer(self._key(uid))}
        try:
            async with self._session.get(url, headers=headers, allow_redirects=False) as response:
                if response.status == 401:
                    self._with_previous ^= {uid}  # the next question shows the other key
                if response.status != 200:
                    logger.warning("the agent of pod %s answered %d to GET /status", pod["metadata"]["name"], response.status)
                    return None
                text = bytearray()
                async for part in response.content.iter_any():
                    text += part
                    if len(text) > STATUS_BYTES:  # what a pod answers is the word of a stranger
                        logger.warning("the agent of pod %s answers more than %d bytes", pod["metadata"]["name"], STATUS_BYTES)
                        return None
        except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError, OSError) as error:
            logger.debug("the agent of pod %s can't be asked: %s", pod["metadata"]["name"], error)
            return None
        try:
            said = json.loads(text)
        except (ValueError, RecursionError) as error:
            logger.warning("the agent of pod %s answers no JSON: %s", pod["metadata"]["name"], error)
            return None
        if not isinstance(said, dict) or said.get("uid") != uid:
            logger.warning("the agent at %s speaks for another job", address)
            return None
        return said

    def _key(self, uid: str) -> str:
        previous = self._settings.previous_master_key
        if previous is None or uid not in self._with_previous:
            return agent_key(uid, self._settings)
        return agent_key(uid, replace(self._settings, master_key=previous))


def pod_to_ask(pods: tuple[Object, ...]) -> Object | None:
    """Pod 0, if it has an address and something in it runs."""
    for pod in pods:
        labels = pod["metadata"].get("labels", {})
        status = pod.get("status", {})
        if labels.get(names.LABEL_POD_INDEX) != "0" or not status.get("podIP"):
            continue
        if any("running" in container.get("state", {}) for container in status.get("containerStatuses", [])):
            return pod
    return None
