"""The planner: pure functions of the observed objects and the time.

No I/O, no clock, no globals. Start reading at plan.py.
"""

from dtj_core.plan.plan import plan

__all__ = ["plan"]
