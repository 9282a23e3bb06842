"""Makes `ps` and /proc show a forked worker's own command and environment instead of the warm process's.

The kernel shows the memory in which the process was started. The agent leaves room there: a first
variable and a last argument that nothing reads. Only that room and the arguments are overwritten.
"""

from __future__ import annotations

import ctypes
from typing import Dict, Sequence

ROOM = "DTJ_WARM_ROOM"
ENVIRONMENT_ROOM_BYTES = 4096
ARGUMENT_ROOM_BYTES = 1024
_FIRST_FIELD = 45  # of arg_start, arg_end, env_start, env_end in /proc/self/stat after the name


def show(command: Sequence[str], environment: Dict[str, str]) -> None:
    """Shows `command`, and these variables before those of the warm process; does nothing where that fails."""
    try:
        with open("/proc/self/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        arguments, arguments_end, variables, variables_end = map(int, fields[_FIRST_FIELD : _FIRST_FIELD + 4])
    except (OSError, ValueError):
        return
    if not 0 < arguments < arguments_end or not 0 < variables < variables_end:
        return
    prefix = (ROOM + "=").encode()
    if ctypes.string_at(variables, len(prefix)) == prefix:
        room = len(ctypes.string_at(variables))
        # Each entry ends with a NUL, and an entry that does not fit is left out.
        text = b""
        for key, value in environment.items():
            entry = ("%s=%s" % (key, value)).encode(errors="surrogateescape") + b"\0"
            text += entry if len(text) + len(entry) <= room else b""
        ctypes.memmove(variables, text.ljust(room, b"\0"), room)
    size = arguments_end - arguments
    shown = b"\0".join(each.encode(errors="surrogateescape") for each in command)[: size - 1]
    ctypes.memmove(arguments, shown.ljust(size, b"\0"), size)
