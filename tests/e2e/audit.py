"""API writes of the operator, counted in the API server's audit log, which misses none."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

WRITES = {"create", "update", "patch", "delete", "deletecollection"}
OPERATOR = "system:serviceaccount:dtj-system:"


def operator_writes(
    cluster: dict[str, str], namespace: str, since: datetime | None = None, until: datetime | None = None
) -> list[str]:
    """Returns `verb resource/name -> code` of the operator's own writes to one namespace, in order.

    Writes before `since` or after `until` are left out. Dry runs are no writes.
    """
    found = []
    for line in Path(cluster["DTJ_AUDIT_LOG"]).read_text().splitlines():
        if namespace not in line:
            continue
        entry = json.loads(line)
        ref = entry.get("objectRef", {})
        if entry["stage"] != "ResponseComplete" or entry["verb"] not in WRITES or ref.get("namespace") != namespace:
            continue
        if not entry["user"]["username"].startswith(OPERATOR) or "dryRun" in entry["requestURI"]:
            continue
        received = datetime.fromisoformat(entry["requestReceivedTimestamp"])
        if (since and received < since) or (until and received > until):
            continue
        resource = ref["resource"] + ("/" + ref["subresource"] if "subresource" in ref else "")
        found.append(f"{entry['verb']} {resource} {ref.get('name', '')} -> {entry['responseStatus']['code']}")
    return found
