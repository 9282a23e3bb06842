"""Names of a Ray node's sockets."""

from __future__ import annotations

import importlib
import os


def use_own_names() -> None:
    """Makes the sockets of the node that this process starts have its id in their names.

    Ray takes a name that no file has, and its raylet makes the file later. Nodes of one machine that start at the same
    time, as those of `dtj run` do, take the same name, and the second raylet ends with "Address already in use" (Ray
    2.49 and 2.60). A version of Ray without this method is left as it is.
    """
    try:
        node = importlib.import_module("ray._private.node").Node
        prepare = node._prepare_socket_file
    except (ImportError, AttributeError):
        return

    def prepare_own(self: object, socket_path: object, default_prefix: str) -> object:
        # No longer than Ray's "plasma_store": the path of a socket has 107 bytes at most.
        return prepare(self, socket_path, "%.4s.%d" % (default_prefix, os.getpid()))

    node._prepare_socket_file = prepare_own
