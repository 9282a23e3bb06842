"""The pause before a local pod's container restarts."""

from __future__ import annotations

import pytest

from dtj.local import kubelet


@pytest.mark.parametrize(("ran", "pause"), [(0.0, 5.0), (599.0, 5.0), (600.0, kubelet.FIRST_BACKOFF_SECONDS)])
def test_container_that_ran_for_ten_minutes_restarts_at_once(ran: float, pause: float) -> None:
    assert kubelet.backoff_after(5.0, ran) == pause
