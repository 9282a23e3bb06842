"""A real Kubernetes for development and tests: `python3 -m hack.cluster --help`.

Two levels, from the same binaries: `control-plane` (etcd, kube-apiserver and kube-controller-manager on loopback, for
API tests) and `up` (kind, one control plane and two workers, with a local registry and a shared directory).
Where public images can be pulled, kind is used as released. Elsewhere everything is built once from Go modules and
Debian packages, into a cache outside the tree. Standard library only.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - an older one gets a message
    raise SystemExit(f"hack.cluster needs Python 3.11 or later, not {sys.version.split()[0]}")
