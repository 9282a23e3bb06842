"""An agent whose names and wall clock come from files of the test: run as a program, with the agent's arguments.

CHAOS_NAMES is a JSON object of addresses by name, in place of the cluster's DNS. CHAOS_CLOCK holds
the seconds by which the wall clock of this agent is wrong. Both are read at each use.
"""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

_resolve, _wall = socket.getaddrinfo, time.time


def _named(host: Any, *arguments: Any, **keywords: Any) -> Any:
    found = json.loads(Path(os.environ["CHAOS_NAMES"]).read_text())
    return _resolve(found.get(host, host), *arguments, **keywords)


def _skewed() -> float:
    return _wall() + float(Path(os.environ["CHAOS_CLOCK"]).read_text() or 0)


if __name__ == "__main__":
    from dtj_agent.main import main

    socket.getaddrinfo, time.time = _named, _skewed
    main()
