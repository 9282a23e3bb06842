"""The decisions: pure functions of what was observed and the time. No I/O, no clock, no globals. plan.py is the contents."""

from dtj_core.plan.plan import plan

__all__ = ["plan"]
