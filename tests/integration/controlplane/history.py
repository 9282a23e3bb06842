"""Records each status that jobs of a namespace had, through a watch of the API server."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import threading
import urllib.parse
from types import TracebackType
from typing import Any

from dtj_contract import names
from hack.cluster.controlplane import ControlPlane


class History:
    """Watches while it is open. `statuses` has the conditions by job, in the order of their writes."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.statuses: dict[str, list[list[Any]]] = {}
        self._path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}"
        listed = plane.request("GET", self._path)
        self._version = listed["metadata"]["resourceVersion"]
        port = urllib.parse.urlsplit(plane.url).port
        self._connection = http.client.HTTPSConnection("127.0.0.1", port, context=plane._tls, timeout=600)
        self._thread = threading.Thread(target=self._run, name="history")

    def __enter__(self) -> History:
        query = urllib.parse.urlencode({"watch": "true", "resourceVersion": self._version, "timeoutSeconds": 3000})
        self._connection.request("GET", f"{self._path}?{query}")
        self._answer = self._connection.getresponse()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sock = self._connection.sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(2)
        self._thread.join(60)
        self._connection.close()

    def _run(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            for line in self._answer:
                found = json.loads(line)["object"]
                conditions = (found.get("status") or {}).get("conditions") or []
                self.statuses.setdefault(found["metadata"]["name"], []).append(conditions)

    def flaps(self) -> list[str]:
        """Returns each condition that came back to a status which it had left."""
        found = []
        for job, writes in self.statuses.items():
            for kind in sorted({c["type"] for conditions in writes for c in conditions}):
                flags = [
                    next((c["status"] for c in conditions if c["type"] == kind), "absent") for conditions in writes
                ]
                runs = [flag for flag, _ in itertools.groupby(flags)]
                if len(set(runs)) < len(runs):
                    found.append(f"{job}: {kind} {', '.join(runs)}")
        return found
