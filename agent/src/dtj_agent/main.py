"""`agent.pyz -- COMMAND...`: the entry point."""

from __future__ import annotations

import os
import signal
import sys
from typing import List, Optional

from dtj_contract import names

USAGE_ERROR = 2


def main(argv: Optional[List[str]] = None) -> None:
    """Runs the agent and ends the process with its exit code."""
    # The kernel drops a SIGTERM that PID 1 has no handler for. From here on none is lost, even
    # while imports run.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(names.EXIT_TERMINATED))
    from dtj_agent.agent import Agent, exit_now
    from dtj_agent.errors import SettingsError
    from dtj_agent.files import state_file
    from dtj_agent.net.loop import Loop
    from dtj_agent.settings import parse

    arguments = sys.argv[1:] if argv is None else argv
    command = arguments[1:] if arguments[:1] == ["--"] else arguments
    try:
        settings = parse(os.environ, command)
        if settings.parent and os.getppid() != settings.parent:
            print("[agent] the process that started this agent has died", flush=True)
            exit_now(names.EXIT_TERMINATED)
            return
        agent = Agent(settings, os.environ, Loop())
    except SettingsError as error:
        print("[agent] %s" % error, flush=True)
        log = os.environ.get(names.ENV_TERMINATION_LOG, names.TERMINATION_LOG)
        state_file.write_termination_message(log, str(error).encode()[: names.TERMINATION_LOG_BYTES])
        exit_now(USAGE_ERROR)
        return
    exit_now(agent.run())
