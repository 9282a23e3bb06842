"""dtj-operator that gives a kubelet 3 seconds beyond a pod's grace period in the place of 30, 1 to mount,
and 2 to a StatefulSet that makes no pods. Called as it is."""

from __future__ import annotations

import sys

from dtj_core.plan import children, stuck_pods
from dtj_operator import app

stuck_pods.OVERDUE_SECONDS = 3.0
children.NUDGE_SECONDS = 2.0
children.STARTING_SECONDS = 1.0

if __name__ == "__main__":
    sys.exit(app.main())
