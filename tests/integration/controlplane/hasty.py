"""`dtj-operator` that reports silent agents after 4 s instead of a minute. Its flags are those of dtj-operator."""

from __future__ import annotations

import sys

from dtj_core.plan import agent_silence, running
from dtj_operator import app

UNREACHABLE_SECONDS = 4.0

if __name__ == "__main__":  # a test imports this module for its constant
    agent_silence.UNREACHABLE_SECONDS = running.UNREACHABLE_SECONDS = UNREACHABLE_SECONDS
    sys.exit(app.main())
