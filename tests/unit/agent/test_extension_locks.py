"""Locks of builds that were killed: deleted before the next attempt, unless a process holds them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dtj_agent.workers import extension_locks
from tests.unit.agent.harness import running


def lock(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    return folder / "lock"


def test_stale_locks_are_deleted_at_both_depths_and_nothing_else(tmp_path: Path) -> None:
    deep, shallow = lock(tmp_path / "py311_cpu" / "op"), lock(tmp_path / "op")
    too_deep = lock(tmp_path / "a" / "b" / "c")
    others = [tmp_path / "op" / "op.so", tmp_path / "op" / "lock.txt", tmp_path / "lock"]
    for other in others:
        other.touch()
    assert sorted(extension_locks.remove_stale_locks(str(tmp_path))) == sorted([str(deep), str(shallow)])
    assert not deep.exists()
    assert all(path.exists() for path in [too_deep, *others])


def test_lock_that_a_process_holds_open_stays(tmp_path: Path) -> None:
    path = lock(tmp_path / "op")
    code = "import sys; held = open(sys.argv[1]); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as builder:
        assert builder.stdout is not None
        builder.stdout.readline()
        assert extension_locks.remove_stale_locks(str(tmp_path)) == []
        assert path.exists()
    assert extension_locks.remove_stale_locks(str(tmp_path)) == [str(path)]


@pytest.mark.parametrize("kind", ["nfs4", "fuse.s3fs", "ceph", "9p"])
def test_folder_on_a_network_volume_is_not_touched(tmp_path: Path, kind: str) -> None:
    path = lock(tmp_path / "shared" / "op")
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path}/shared {kind} rw 0 0\ntmpfs {tmp_path}/share tmpfs rw 0 0\n"
    )
    assert extension_locks.remove_stale_locks(str(tmp_path / "shared"), str(mounts)) == []
    assert path.exists()


def test_lock_that_is_a_link_is_not_followed_and_a_missing_folder_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    (tmp_path / "root" / "op").mkdir(parents=True)
    (tmp_path / "root" / "op" / "lock").symlink_to(tmp_path / "precious")
    assert extension_locks.remove_stale_locks(str(tmp_path / "root")) == []
    assert [extension_locks.remove_stale_locks(root) for root in ("", "relative", str(tmp_path / "none"))] == [
        [],
        [],
        [],
    ]
    assert (tmp_path / "precious").exists()


FOLDERS = {
    "as the user sets it": ({"TORCH_EXTENSIONS_DIR": "/e", "HOME": "/h"}, "/e"),
    "in the user's cache": ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c/torch_extensions"),
    "at home": ({"HOME": "/h"}, "/h/.cache/torch_extensions"),
    "unknown": ({}, ""),
}


@pytest.mark.parametrize(("environ", "found"), FOLDERS.values(), ids=FOLDERS)
def test_folder_is_where_torch_builds(environ: dict[str, str], found: str) -> None:
    assert extension_locks.folder(environ) == found


BUILD = """
import os, signal, sys
path = os.path.join(os.environ["TORCH_EXTENSIONS_DIR"], "op", "lock")
if os.environ["DTJ_ATTEMPT"] == "1":
    os.makedirs(os.path.dirname(path))
    os.open(path, os.O_CREAT | os.O_EXCL)
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(5 if os.path.exists(path) else 0)
"""


def test_rank_killed_while_building_leaves_no_lock_to_the_next_attempt(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILD]
    with running(tmp_path, 1, command, TORCH_EXTENSIONS_DIR=str(tmp_path / "ext"), DTJ_MAX_RESTARTS="1") as group:
        assert group.wait_exit(0) == 0, group.logs()
        assert f"removed {os.path.join(str(tmp_path / 'ext'), 'op', 'lock')}" in group.log(0)
