"""Real volumes that fail on demand: a full one, and one that hangs.

Each is gone with its holder process.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

_FREEZER = """
import fcntl, os, select, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
FREEZE, THAW, LONGEST = 0xC0045877, 0xC0045878, 60
print("mounted", flush=True)
while sys.stdin.readline():
    fcntl.ioctl(fd, FREEZE, 0)
    print("frozen", flush=True)
    # Thaw at the latest after LONGEST, because a writer can't even be killed meanwhile.
    select.select([sys.stdin], [], [], LONGEST)
    sys.stdin.readline()
    fcntl.ioctl(fd, THAW, 0)
    print("thawed", flush=True)
"""


@contextlib.contextmanager
def small_volume(mount_point: Path, mebibytes: int) -> Iterator[Path]:
    """Mounts a tmpfs of that size in a separate mount namespace: root or not, nothing else on the machine sees it."""
    mount_point.mkdir()
    script = f'mount -t tmpfs -o size={mebibytes}m dtj-test "$0" && echo mounted && exec cat'
    for flags in ("-Urm", "-m"):
        with _holder(["unshare", flags, "sh", "-c", script, str(mount_point)]) as (holder, error):
            if holder:
                yield Path(f"/proc/{holder.pid}/root{mount_point}")
                return
    raise AssertionError(f"no small volume can be mounted: neither with a user namespace nor as root ({error})")


@contextlib.contextmanager
def freezing_volume(mount_point: Path, mebibytes: int) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Mounts an ext4 on a loop device.

    Yields it with a function that freezes and thaws it in turn: FIFREEZE, for 60 s at most.
    """
    if os.geteuid() != 0:
        raise AssertionError("a volume that can be frozen needs a loop device: run this test as root")
    mount_point.mkdir()
    image = mount_point.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(mebibytes << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, timeout=60)
    script = f'mount -o loop "{image}" "$0" && exec "{sys.executable}" -c "$1" "$0"'
    with _holder(["unshare", "-m", "sh", "-c", script, str(mount_point), _FREEZER]) as (holder, error):
        assert holder, f"no ext4 on a loop device can be mounted ({error})"

        def switch() -> None:
            assert holder.stdin
            holder.stdin.write("\n")
            holder.stdin.flush()
            assert _line(holder) in ("frozen", "thawed")

        yield Path(f"/proc/{holder.pid}/root{mount_point}"), switch


@contextlib.contextmanager
def _holder(command: list[str]) -> Iterator[tuple[subprocess.Popen[str] | None, str]]:
    """Starts the process in whose mount namespace the volume is, and waits for the mount.

    The process ends when its stdin does.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True) as holder:
        try:
            line = _line(holder)
            yield (holder, "") if line == "mounted" else (None, line)
        finally:
            assert holder.stdin
            with contextlib.suppress(BrokenPipeError):
                holder.stdin.close()
            holder.wait(30)


def _line(holder: subprocess.Popen[str]) -> str:
    assert holder.stdout
    ready, _, _ = select.select([holder.stdout], [], [], 30)
    return holder.stdout.readline().strip() if ready else "nothing within 30 s"
