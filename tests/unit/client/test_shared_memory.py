"""The reaper removes the shared memory of local pods, and nothing else."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from dtj.local import shared_memory


def folder(parent: Path, name: str, age: float = 0.0) -> Path:
    (made := parent / name).mkdir()
    (made / "1-1-own-0-0").touch()
    os.utime(made, (made.stat().st_mtime - age,) * 2)
    return made


def test_end_of_a_run_removes_its_own_folders_alone(tmp_path: Path) -> None:
    mine, other = (folder(tmp_path, f"dtj-{uid}-{uuid.uuid4()}") for uid in ("aaaa", "aaaab"))
    shared_memory.remove("aaaa", tmp_path)
    assert not mine.exists()
    assert other.exists()


def test_stale_folder_of_a_local_pod_is_removed(tmp_path: Path) -> None:
    pod = str(uuid.uuid4())
    stale = folder(tmp_path, f"dtj-job-{pod}", age=7200)
    kept = [
        folder(tmp_path, f"dtj-other-{pod}"),
        folder(tmp_path, "dtj-job-0", age=7200),
        folder(tmp_path, f"torch-{pod}", age=7200),
    ]
    shared_memory.remove_stale(tmp_path)
    assert not stale.exists()
    assert all(each.exists() for each in kept)
