"""The pages of an agent's port, by path."""

from __future__ import annotations

import json
import time
from typing import Callable, Mapping, Optional, Union

from dtj_agent.net import http_response
from dtj_agent.pages import metrics
from dtj_agent.pages.status_waits import StatusWaits
from dtj_contract import operator_message
from dtj_contract.agent_status import AgentStatus
from dtj_contract.operator_message import OperatorMessage
from dtj_contract.status_token import bearer_is_valid


def pages(
    secret: bytes,
    status: Callable[[], AgentStatus],
    handed_over: Callable[[OperatorMessage], None],
    waits: Optional[StatusWaits] = None,
    now: Callable[[], float] = time.time,
) -> Mapping[str, http_response.Page]:
    """Returns the pages by path.

    /healthz and /metrics are open; /status shows logs and pod names, so it needs a token of the job
    and of this time. `now`: the clock, in Unix seconds. A request that waits has shown its token. A
    request for /status may hand over what the operator knows about the job, and may wait for a change.
    """

    def show_status(request: http_response.Request) -> Union[http_response.Response, http_response.Deferred]:
        if not bearer_is_valid(secret, request.authorization, now(), request.operator):
            return http_response.unauthorized(now())
        if request.operator:
            handed_over(operator_message.decode(request.operator))
        if waits is not None and request.wait is not None:
            return waits.answer(request)
        return http_response.Response(200, "application/json", json.dumps(status()).encode())

    return {
        "/healthz": lambda request: http_response.text(200, "ok\n"),
        "/metrics": lambda request: http_response.Response(200, metrics.CONTENT_TYPE, metrics.render(status())),
        "/status": show_status,
    }
