"""`dtj-operator` whose watches receive no events, so that only the resync is left."""

from __future__ import annotations

import sys
from typing import Any

from dtj_operator import app
from dtj_operator.watches import WatchState


def _nothing(self: WatchState, *_: Any) -> None:
    """Ignores every event, like a dead watch."""


WatchState.on_job_event = _nothing  # type: ignore[assignment,method-assign]
WatchState.on_child_event = _nothing  # type: ignore[assignment,method-assign]
sys.exit(app.main())
