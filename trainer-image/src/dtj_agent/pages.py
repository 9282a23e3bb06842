"""The pages of an agent's port."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, Mapping

from dtj_agent import auth, http, metrics


def pages(secret: bytes, status: Callable[[], Dict[str, Any]]) -> Mapping[str, http.Page]:
    """`/healthz` and `/metrics` are open; `/status` shows logs and pod names, so it wants the job's token."""

    def show_status(request: http.Request) -> http.Answer:
        if not auth.bearer_is_valid(secret, request.authorization):
            return http.text(401, 'Authorization: Bearer <hex HMAC-SHA256(key, "status")>\n')
        return http.Answer(200, "application/json", json.dumps(status()).encode())

    return {
        "/healthz": lambda request: http.text(200, "ok\n"),
        "/metrics": lambda request: http.Answer(200, metrics.CONTENT_TYPE, metrics.render(status())),
        "/status": show_status,
    }
