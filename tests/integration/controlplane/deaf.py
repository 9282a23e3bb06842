"""`dtj-operator` whose watches hear nothing: only the resync is left."""

from __future__ import annotations

import sys
from typing import Any

from dtj_operator import app
from dtj_operator.watches import Watches


def _nothing(self: Watches, *_: Any) -> None:
    """A dead watch."""


Watches.job = _nothing  # type: ignore[assignment,method-assign]
Watches.child = _nothing  # type: ignore[assignment,method-assign]
sys.exit(app.main())
