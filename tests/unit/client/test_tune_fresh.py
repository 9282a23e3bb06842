"""`dtj tune --fresh`: no trial of the new sweep resumes from a checkpoint of the old one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.errors import LocalRunError
from dtj.tune import fresh, spec
from tests.unit.client.sweeps import LONG, TuneRun, sweep

pytestmark = pytest.mark.timeout(2 * LONG)


def on_host(path: Path, **fields: Any) -> dict[str, Any]:
    """Returns a sweep that saves on a hostPath."""
    path.mkdir(exist_ok=True)
    document = sweep(**fields)
    document["spec"]["job"]["spec"]["checkpoint"] = {"volume": {"hostPath": {"path": str(path)}}}
    return document


def saved(folder: Path) -> Path:
    """Writes a checkpoint of a trial. Returns its file."""
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    return folder / "state.json"


def test_fresh_trials_begin_without_the_old_checkpoints_on_a_host_path(tmp_path: Path) -> None:
    run = TuneRun(tmp_path, on_host(tmp_path / "host", trials=1, steps=10, step_seconds=0))
    try:
        assert run.run() == 0, run.output()
        others = [
            saved(tmp_path / f"host/{name}") for name in ("default/search", "default/other-0000", "ns/search-0000")
        ]
        old = run.trials()[0][1]
        run.document["spec"]["parameters"]["lr"] = {"type": "float", "min": 1e-6, "max": 1e-6}
        assert run.run("--fresh") == 0, run.output()
    finally:
        run.kill_rest()
    assert run.trials()[0][1] != old, "trial 0 has the value of the old parameters"
    log = (run.sweep / "trials/0000/start-1/run/search-0000-0.log").read_text()
    assert "step 10 " in log, "trial 0 has trained"
    assert all(path.exists() for path in others), "something else was removed"


def test_fresh_removes_nothing_while_other_checkpoints_have_the_names_of_trials(tmp_path: Path) -> None:
    document = on_host(tmp_path / "host")
    own, other = (saved(tmp_path / f"host/default/search-000{number}") for number in range(2))
    trial = tmp_path / "sweep/trials/0000"
    trial.mkdir(parents=True)
    (trial / "job.yaml").write_text(
        yaml.safe_dump({"metadata": {"name": "search-0000"}, "spec": document["spec"]["job"]["spec"]})
    )
    message = "search-0001: checkpoints of no trial in .*sweep, .* remove them yourself, or rename the sweep"
    with pytest.raises(LocalRunError, match=message):
        fresh.clear(tmp_path / "sweep", spec.parse(document, "sweep.yaml"))
    assert own.exists()
    assert (trial / "job.yaml").exists()
    other.unlink()
    fresh.clear(tmp_path / "sweep", spec.parse(document, "sweep.yaml"))
    assert not own.exists()
    assert not trial.exists()


def test_fresh_is_rejected_on_a_cluster(tmp_path: Path, dtj: Callable[..., tuple[int, str, str]]) -> None:
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep()))
    kept = saved(tmp_path / "sweep")
    code, _, error = dtj("tune", tmp_path / "sweep.yaml", "--dir", tmp_path / "sweep", "--fresh", "--cluster")
    assert code == 2
    assert "--fresh removes no checkpoints of a cluster" in error
    assert "rename the sweep (metadata.name)" in error
    assert kept.exists()
