"""A runc that requests only capabilities that exist here. Installed as Docker's runtime; needs only Python.

In a sandbox whose root lacks some capability (CAP_SYS_RESOURCE, typically), `docker run --privileged` and
`docker exec --privileged` fail with "unable to apply caps: operation not permitted", because runc requests all of them.
kind needs both. This program removes the capabilities that its own bounding set lacks from the specification, then
executes runc.
"""

from __future__ import annotations

import json
import os
import re
import sys

# In the kernel's numbering (linux/capability.h).
NAMES = """
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
    NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN
    SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE
    MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
""".split()  # noqa: SIM905 - forty quoted names would be longer


def missing(status: str) -> set[str]:
    """Returns the capabilities that the process of this /proc/PID/status can never have."""
    found = re.search(r"^CapBnd:\s*([0-9a-f]+)", status, re.MULTILINE)
    bounding = int(found.group(1), 16) if found else ~0
    return {f"CAP_{name}" for number, name in enumerate(NAMES) if not bounding >> number & 1}


def without(process: dict[str, object], lost: set[str]) -> bool:
    """Removes capabilities from a process of an OCI specification. Returns whether anything changed."""
    sets = process.get("capabilities")
    if not isinstance(sets, dict):
        return False
    changed = False
    for name, held in sets.items():
        kept = [capability for capability in held or [] if capability not in lost]
        if kept != (held or []):
            sets[name] = kept
            changed = True
    return changed


def specification(arguments: list[str]) -> str | None:
    """Returns the file with the process of this runc call, or None for calls that start none."""
    options = {"create": "--bundle", "run": "--bundle", "exec": "--process"}
    for command, option in options.items():
        if command not in arguments:
            continue
        short = option[1:3]
        for place, argument in enumerate(arguments):
            value = None
            if argument in (option, short) and place + 1 < len(arguments):
                value = arguments[place + 1]
            elif argument.startswith(option + "="):
                value = argument.split("=", 1)[1]
            if value is not None:
                return os.path.join(value, "config.json") if command != "exec" else value
    return None


def edit(path: str, lost: set[str]) -> None:
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    process = document if _is_process(document) else document.get("process")
    if isinstance(process, dict) and without(process, lost):
        aside = path + ".dtj"
        with open(aside, "w", encoding="utf-8") as file:
            json.dump(document, file)
        os.replace(aside, path)


def _is_process(document: dict[str, object]) -> bool:
    """Returns whether a document is a bare process, as `exec --process` names it; a bundle has it under `process`."""
    return "process" not in document and "args" in document


def main(runc: str, arguments: list[str]) -> None:
    with open("/proc/self/status", encoding="utf-8") as file:
        lost = missing(file.read())
    path = specification(arguments)
    if lost and path and os.path.exists(path):
        edit(path, lost)
    os.execv(runc, [runc, *arguments])


if __name__ == "__main__":
    # A link beside this file leads to the real runc, so that this file is the same everywhere.
    here = os.path.dirname(os.path.realpath(sys.argv[0]))
    main(os.path.realpath(os.path.join(here, "runc")), sys.argv[1:])
