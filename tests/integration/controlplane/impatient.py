"""`dtj-operator` with short deadlines. Its flags are those of dtj-operator.

A kubelet has 3 seconds beyond a pod's grace period instead of 30, and 1 second to mount. A
StatefulSet that creates no pods has 2 seconds.
"""

from __future__ import annotations

import sys

from dtj_core.plan import children, stuck_pods
from dtj_operator import app

stuck_pods.OVERDUE_SECONDS = 3.0
children.NUDGE_SECONDS = 2.0
children.STARTING_SECONDS = 1.0

if __name__ == "__main__":
    sys.exit(app.main())
