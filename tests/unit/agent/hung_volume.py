"""A volume that hangs like a dead NFS server: a process that reads it sleeps uninterruptibly, even after SIGKILL.

A FUSE file system whose server reads every request and answers only the first. When the server
exits, the kernel releases all waiting processes. Mounting needs root and /dev/fuse.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MNT_DETACH = 2
INIT = 26  # the first request of the kernel
HEADER = struct.Struct("<IIQQIIII")  # length, opcode, unique, node, uid, gid, pid, padding
# struct fuse_init_out: version 7.31, and the limits of concurrent requests.
AGREED = struct.pack("<IIIIHHIIHH", 7, 31, 65536, 0, 12, 10, 65536, 1, 0, 0).ljust(64, b"\0")

libc = ctypes.CDLL(None, use_errno=True)


def possible() -> bool:
    return os.geteuid() == 0 and os.access("/dev/fuse", os.R_OK | os.W_OK)


def serve(where: str) -> None:
    """Mounts the volume and never answers; exits with its parent."""
    libc.prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"hung", where.encode(), b"fuse", 0, options) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), where)
    print("mounted", flush=True)
    while True:
        _, opcode, unique, *_ = HEADER.unpack_from(os.read(device, 1 << 18))
        if opcode == INIT:
            os.write(device, struct.pack("<IiQ", 16 + len(AGREED), 0, unique) + AGREED)


@contextmanager
def hung_volume(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Mounts the volume at `folder`. Killing the yielded server releases all waiting processes."""
    folder.mkdir()
    server = subprocess.Popen([sys.executable, __file__, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "mounted\n"
        yield server
    finally:
        server.kill()
        server.wait(60)
        libc.umount2(str(folder).encode(), MNT_DETACH)


if __name__ == "__main__":
    serve(sys.argv[1])
