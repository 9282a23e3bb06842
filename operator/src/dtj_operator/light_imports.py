"""Keeps the half of the Kubernetes client that the operator does not use out of its memory.

`import kubernetes.aio.client` runs the `__init__` of `kubernetes` first, which imports the
synchronous client with requests, google.auth, oauthlib and websockets: 25 MiB of a process that
needs 55, and most of a second at each start. The packages are therefore registered without running
their `__init__`. Each of their modules can still be imported by its own name.
"""

from __future__ import annotations

import importlib.util
import sys

PACKAGES = ("kubernetes", "kubernetes.aio")
"""Packages whose `__init__` does nothing but import all of their modules."""


def register() -> None:
    """Registers the packages, unless somebody else has imported them before."""
    for name in PACKAGES:
        if name in sys.modules:
            return
        spec = importlib.util.find_spec(name)
        if spec is None:
            return
        sys.modules[name] = importlib.util.module_from_spec(spec)
