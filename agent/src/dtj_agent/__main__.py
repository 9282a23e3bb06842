"""`python3 -m dtj_agent -- COMMAND...`."""

from __future__ import annotations

from dtj_agent.main import main

main()
