"""`dtj run --fresh` starts over, whatever kind of script ran before.

Only the job's own files are removed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dtj.errors import InputError
from dtj.local import volumes
from dtj.main import main
from tests.unit.client.support import LocalRun, script_job

Start = Callable[..., LocalRun]


def begun(run: LocalRun) -> list[str]:
    """Returns where rank 0 began in each attempt.

    Only rank 0 writes, so another rank may read the count after rank 0 has written.
    """
    return re.findall(
        r"^\[rank 0\] attempt (\d+ begins at \d+)$", (run.run_dir / "count-0.log").read_text(), re.MULTILINE
    )


def test_fresh_removes_files_of_the_script_and_the_count_of_attempts(start: Start) -> None:
    assert start(job=script_job("10")).wait()[0] == 0
    second = start(job=script_job("10"))
    assert second.wait()[1]["status"]["attempt"] == 2, "the lease of the first run remains"
    assert begun(second) == ["2 begins at 10"]
    assert any("an earlier run left files" in line for line in second.lines())

    third = start("--fresh", job=script_job("10"))
    code, job = third.wait()
    assert code == 0, third.lines()
    assert job["status"]["attempt"] == 1
    assert begun(third) == ["1 begins at 0"]
    assert any("--fresh: removed everything that earlier runs left in" in line for line in third.lines())


def test_fresh_on_a_first_run_removes_nothing(start: Start) -> None:
    run = start("--fresh", steps=5)
    assert run.wait()[0] == 0
    assert not any("--fresh" in line for line in run.lines())


def test_fresh_leaves_other_jobs_and_the_claim_alone(tmp_path: Path) -> None:
    mine = tmp_path / "shared/default/count"
    other = tmp_path / "shared/default/counting"
    for folder in (mine / "deep", other):
        folder.mkdir(parents=True)
        (folder / "weights").write_text("w")
    (tmp_path / "shared/data.csv").write_text("d")
    volumes.clear(mine, tmp_path)
    assert not mine.exists()
    assert (other / "weights").exists()
    assert (tmp_path / "shared/data.csv").exists()


@pytest.mark.parametrize("linked", ["default", "default/count"])
def test_fresh_removes_nothing_behind_a_link(tmp_path: Path, linked: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "count").mkdir(parents=True)
    link = tmp_path / "volumes/shared" / linked
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere if linked == "default" else elsewhere / "count")
    with pytest.raises(InputError, match="nothing behind a link"):
        volumes.clear(tmp_path / "volumes/shared/default/count", tmp_path / "volumes")
    assert (elsewhere / "count").is_dir()


def test_fresh_clears_a_claim_on_another_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    (disk / "default/count").mkdir(parents=True)
    (tmp_path / "volumes").mkdir()
    (tmp_path / "volumes/shared").symlink_to(disk)
    volumes.clear(tmp_path / "volumes/shared/default/count", tmp_path / "volumes")
    assert not (disk / "default/count").exists()


def test_fresh_removes_nothing_of_a_host_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "host/default/count/weights"
    kept.parent.mkdir(parents=True)
    kept.write_text("w")
    Path("job.yaml").write_text(script_job("1", hostPath={"path": str(tmp_path / "host")}))
    assert main(["run", "job.yaml", "--plain", "--fresh"]) == 2
    assert "--fresh removes nothing outside" in capsys.readouterr().err
    assert kept.read_text() == "w"
