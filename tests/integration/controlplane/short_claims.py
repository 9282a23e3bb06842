"""`dtj-operator` whose claim lapses after 6 seconds instead of 2 minutes. Its flags are those of dtj-operator."""

from __future__ import annotations

import sys

from dtj_operator import app
from dtj_operator.leader import overlap

overlap.CLAIM_SECONDS = 6.0
overlap.RENEW_SECONDS = 1.0
sys.exit(app.main())
